"""A run from its first round to its last, whoever loops over them; and who is told of it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedif_flower.errors import ConfigError, TrainingFailedError, ValuationError
from fedif_flower.intake.intake import Intake
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.metrics import ReplyLimits, aggregate_metrics, screen_evaluations
from fedif_flower.messages.screened_grid import screened
from fedif_flower.server.arguments import require_start
from fedif_flower.server.evaluation import (
    EvaluateFunction,
    draw_evaluators,
    metrics_of,
    users_metrics,
)
from fedif_flower.server.failures import MemberFailures
from fedif_flower.server.model import GlobalModel
from fedif_flower.server.noise import NoiseWrapper, calling_wrapper
from fedif_flower.server.open_run import ENDS_RUNS, OpenRun, replies_to, with_an_end
from fedif_flower.server.record import History, Round, Step
from fedif_flower.server.roster import NodeDirectory, Roster
from fedif_flower.server.subclass import (
    handed_on,
    looks_through_replies,
    may_look_through_replies,
    messages_of,
    pair_of,
    require_constructed,
    require_messages,
    take_model,
)
from fedif_flower.server.summary import Scoring
from fedif_flower.stages import Stages
from fedif_flower.valuation.ledger import ScoreLedger

logger = logging.getLogger(__name__)
_FLOWER = logging.getLogger("flwr")  # Which prints in any program, as Flower's strategies do.


class StopTraining(Exception):  # noqa: N818 (as StopIteration: no error)
    """Raised by a callback to end a run in good order after this round.

    Raised in ``on_asked`` it ends the run before its round; in ``on_start`` no run begins, and who
    started it receives it.
    """


class Callback:
    """Is told of every round; a subclass overrides what it needs.

    Each is told in the order in which the strategy has them, and all of one thing before any is
    told of the next: ``on_step`` and ``on_round``, then ``on_model``, ``on_metrics`` and
    ``on_round_end``. An exception ends the run, except for :class:`StopTraining`, which ends it in
    good order; all are told of a round's metrics, since it is complete then.
    """

    def on_start(self, strategy: RunningStrategy) -> None:
        """Look at the strategy before its first round; its model is the one to begin with."""

    def why_updates_are_read(self, strategy: RunningStrategy) -> str:  # noqa: ARG002
        """Return why it needs each client's update itself; empty if it does not."""
        looks = type(self).on_step is not Callback.on_step
        return f"{type(self).__name__} looks at each client's update" if looks else ""

    def on_asked(self, current: Round) -> None:
        """Be told whom a round is about to ask."""

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:  # noqa: ARG002
        """Return what a node's next message holds beside the model and the settings."""
        return {}

    def on_step(self, step: Step) -> None:
        """Take in the step that a round took; not called for a round that took none."""

    def on_round(self, current: Round) -> None:
        """Take in a round, once its replies are combined or have failed."""

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float] | None:  # noqa: ARG002
        """Look at the global model after a round; 0: before the first.

        Returns
        -------
        mapping of str to float, optional
            Metrics, which Flower's result holds as ``evaluate_metrics_serverapp``. Anything else
            ends the run with a ``ValuationError`` once the round is complete; what is empty or
            ``False`` is as good as ``None``.
        """
        return None

    def on_metrics(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics that evaluation and all callbacks gave for a round's model."""

    def on_round_end(self, server_round: int) -> None:
        """Be told that all have taken in a round's metrics, and none raised an error."""

    def on_end(self) -> None:
        """Be told that there are no more rounds, whether they ended in good order or not.

        Whoever was told of a start is told of an end, though another's ``on_start`` failed.
        """


class RunningStrategy(FedAvg):
    """Flower's ``FedAvg`` with rounds that are counted from the first process on, and told of.

    After each round, clients drawn from the seed, the user's evaluation and callbacks look at the
    global model. No error of the user's own evaluation ends a run that has begun, unless it is one
    of this package: a model that it cannot bear is taken back.

    A loop of somebody else's, such as that of a strategy that wraps this one, may call Flower's
    methods itself. The first call begins the run then, and the next one closes each round. What
    only :meth:`start` knows is when there are no more rounds: such a loop calls :meth:`end`. A
    subclass with a ``start`` of its own need not.
    """

    combines_updates = True  # Whether a step is a sum of updates times coefficients.
    sets_lengths = False  # Whether its weights bring updates to another length.
    chooses_one = False  # Whether a round's model is to be one client's, bit for bit.
    ledger: ScoreLedger | None = None  # Keeps a weight score of each client.
    model: GlobalModel
    history: History
    stages: Stages
    roster: Roster
    intake: Intake
    limits: ReplyLimits
    callbacks: list[Callback]
    seed: int
    completed_rounds = 0  # By earlier processes, and by this one.
    _open_run: OpenRun | None = None  # That is going on.
    _ends_by_itself = False  # Whether a `start` of a subclass's own goes through it.
    _evaluators: Sequence[int] = ()
    _stop: StopTraining | None = None  # After this round.
    _failure: TrainingFailedError | None = None  # Likewise: too many rounds have failed.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let a ``start`` of the subclass's own end runs as this one's does.

        Methods of its own that take in replies may look through them first.
        """
        super().__init_subclass__(**kwargs)
        start = cls.start
        if start is not RunningStrategy.start and not hasattr(start, ENDS_RUNS):
            cls.start = with_an_end(start)  # type: ignore[method-assign]
        for name in ("aggregate_train", "aggregate_evaluate"):
            aggregate = getattr(cls, name)
            is_own = aggregate is not getattr(RunningStrategy, name)
            if is_own and not looks_through_replies(aggregate):
                setattr(cls, name, may_look_through_replies(aggregate))

    @property
    def nodes(self) -> NodeDirectory:
        """The members that are known, and who of them is online."""
        return self.roster.directory

    @property
    def failures(self) -> MemberFailures:
        """The members that err."""
        return self.roster.failures

    @property
    def scoring(self) -> Scoring | None:
        """How the weight scores come about; ``None``: nothing is smoothed."""
        if self.ledger is None:
            return None
        return Scoring.of(self.ledger)

    @property
    def is_stopping(self) -> bool:
        """Whether a callback has said that the run ends after this round."""
        return self._stop is not None

    def tell(self, notify: Callable[[Callback], object]) -> None:
        """Tell every callback something; one that stops the run does so when the round is over."""
        for callback in self.callbacks:
            try:
                notify(callback)
            except StopTraining as stop:
                self._stop = stop

    def tell_all(self, notify: Callable[[Callback], object]) -> None:
        """Tell every callback something, whatever it raises: the first error comes afterwards.

        For what each has to know, such as that a round is complete.
        """
        errors: list[BaseException] = []
        for callback in self.callbacks:
            try:
                notify(callback)
            except StopTraining as stop:
                self._stop = stop
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Take the model that a run begins with, and tell callbacks, before anybody is asked."""
        self._stop = None
        self._failure = None
        self.model.begin(initial_arrays)
        self.history.forget_after(self.completed_rounds)
        self.roster.begin()
        self.intake.begin(self)
        with ExitStack() as started:
            for callback in self.callbacks:
                callback.on_start(self)
                started.callback(callback.on_end)
            started.pop_all()  # No start failed: the run tells them of its end.
        last_examined = -1
        if self.completed_rounds:
            last_examined = 0  # An earlier process has looked at its last model.
        self._open_run = OpenRun(grid, screened(grid), last_examined=last_examined)

    def end(self) -> None:
        """End the run: callbacks are told that there are no more rounds.

        For loops that call Flower's methods themselves, after the last round. Where no run goes on,
        nothing happens.
        """
        run = self._open_run
        if run is None:
            return
        failed = sys.exception() is not run.outer
        if failed:
            self._give_up_round()
        try:
            if not (run.is_own or failed):
                self._close_round()
        finally:
            self._open_run = None
            if not run.is_over:
                self._tell_end(failed=failed)

    def _give_up_round(self) -> None:
        """Take back the step of a round that an error ended: its number comes again."""
        given_up = self.history.after(self.completed_rounds)
        if any(record.status == "advanced" for record in given_up):
            self.model.take_back()
        self.forget_given_up()

    def forget_given_up(self) -> None:
        """Forget what was learned in a round that an error ended."""

    def _tell_end(self, *, failed: bool) -> None:
        self.tell_all(lambda callback: callback.on_end())
        if failed:
            return
        for stage in self.stages:
            remark = stage.remark()
            if remark:
                logger.info("%s", remark)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run the rounds, as in Flower's ``Strategy``, over a grid on which no reply is believed.

        See :class:`~fedif_flower.messages.screened_grid.ScreenedGrid`. The arrays of the result are
        the model that the run ended with, whatever its rounds have led to. A round that an error
        ends is given up, and its step taken back; a strategy that is started again does it again.

        Raises
        ------
        ConfigError, ValueError
            If an argument is out of range or of another kind, or as :meth:`begin` says.
        """
        configs = {"train_config": train_config, "evaluate_config": evaluate_config}
        require_start(grid, num_rounds, timeout, configs, evaluate_fn)
        require_constructed(self)
        self.intake.settings.pace.require_within(timeout)
        self.end()  # Of another loop's.
        started = time.monotonic()
        grid = screened(grid)
        result = Result()
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        with self._ending_where_it_fails():
            self.begin(grid, initial_arrays)
            assert self._open_run is not None  # begin
            self._open_run.is_own = True
            _FLOWER.info("Starting %s strategy: %d rounds", type(self).__name__, num_rounds)
            self.summary()
        last_round = self.completed_rounds + num_rounds
        try:
            if not self.completed_rounds:  # Else an earlier process has looked at its last model.
                self._show_model(0, evaluate_fn, result)
            for server_round in range(self.completed_rounds + 1, last_round + 1):
                _FLOWER.info("[ROUND %d/%d]", server_round, last_round)
                self._train(server_round, grid, timeout, train_config, result)
                if self._failure is None:
                    self._evaluate_at_clients(server_round, grid, timeout, evaluate_config, result)
                self.completed_rounds = server_round
                self._show_model(server_round, evaluate_fn, result)
            result.arrays = self.model.record
            seconds = time.monotonic() - started
            _FLOWER.info("Strategy execution finished in %.2fs\n%s", seconds, result)
        except StopTraining as stop:
            logger.info("stopped: %s", stop)
        finally:
            self.end()
        result.arrays = self.model.record
        return result

    def _train(
        self, server_round: int, grid: Grid, timeout: float, config: ConfigRecord, result: Result
    ) -> None:
        """Let a round's members train, and go on to the model that their replies lead to."""
        before = self.model.record
        whose = type(self).__name__
        # A subclass may have put methods of its own in the place of these two.
        returned = self.configure_train(server_round, before, config, grid)
        messages = messages_of(f"{whose}.configure_train", returned)
        require_messages(f"{whose}.configure_train", messages, self.members_of(server_round))
        replies = grid.send_and_receive(messages, timeout=timeout)
        combined = self.aggregate_train(server_round, replies)
        arrays, metrics = pair_of(f"{whose}.aggregate_train", combined)
        if arrays is None:
            arrays = before
        take_model(f"{whose}.aggregate_train", arrays, self.model)
        if metrics is not None:
            _FLOWER.info("\t└──> Aggregated MetricRecord: %s", metrics)
            result.train_metrics_clientapp[server_round] = metrics

    def _evaluate_at_clients(
        self, server_round: int, grid: Grid, timeout: float, config: ConfigRecord, result: Result
    ) -> None:
        """Let clients evaluate the new model, where the strategy says that they do."""
        returned = self.configure_evaluate(server_round, self.model.record, config, grid)
        messages = messages_of(f"{type(self).__name__}.configure_evaluate", returned)
        if not messages:
            return
        replies = grid.send_and_receive(messages, timeout=timeout)
        metrics = self.aggregate_evaluate(server_round, replies)
        if metrics is not None:
            _FLOWER.info("\t└──> Evaluated MetricRecord: %s", metrics)
            result.evaluate_metrics_clientapp[server_round] = metrics

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients and send them the model.

        The first call of a loop that is not :meth:`start` begins the run; a later one lets
        callbacks look at the model that the loop goes on from. Nobody is asked any more after a
        callback has ended the run.
        """
        run = self._open_run
        if run is not None and run.is_own:
            return self.ask_members(server_round, arrays, config, grid)
        wrapper = calling_wrapper()
        if wrapper is not None:
            self._require_noise_fits(wrapper, arrays)
        if run is not None and server_round < run.loop_round:
            self.end()  # The loop was started again.
        with self._ending_where_it_fails():
            run = self._enter_loop_round(arrays, grid)
            if run.is_over:
                return []
            run.begin_round(server_round, self.completed_rounds)
            run.noise_for = 0
            if wrapper is not None:
                run.noise_for = wrapper.num_sampled_clients
            messages = self.ask_members(run.server_round, arrays, config, run.grid)
            run.trained = run.give_secret_ids(messages)
            return messages

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002 (Flower's signature)
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen the replies, weigh them, and combine them into the new model.

        Returns
        -------
        tuple of ArrayRecord and MetricRecord
            The model to go on with, and the clients' metrics. Where the round has made none,
            ``None`` to :meth:`start` and to what adds noise to it; another loop gets the model that
            stays.

        Raises
        ------
        ConfigError
            If no run has begun, or the replies were gone through before.
        TrainingFailedError
            If it is the last of too many rounds that failed.
        """
        run = self._open_run
        if run is None:
            raise ConfigError(
                f"{type(self).__name__}.aggregate_train: no clients were asked by its "
                "configure_train, which one of your own has to call (super().configure_train)"
            )
        replies = handed_on(f"{type(self).__name__}.aggregate_train", replies)
        if run.is_own:
            return self.take_in_replies(replies)
        stays = None if run.noise_for else self.model.record
        if run.is_over:
            return stays, None
        with self._ending_where_it_fails():
            arrays, metrics = self.take_in_replies(replies_to(run.trained, replies))
            self.completed_rounds = run.server_round
            run.last_combined = run.server_round
            if self._failure is not None:
                self._close_round()
            if arrays is None and not run.noise_for:
                arrays = self.model.record
            return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate the new model, by draws of their own, and send it."""
        run = self._open_run
        if run is not None and run.is_own:
            return self._ask_evaluators(server_round, arrays, config, grid)
        with self._ending_where_it_fails():
            run = self._enter_loop_round(arrays, grid)
            if run.is_over:
                return []
            arrays = self.model.ended_with(arrays)
            number = server_round + run.round_offset
            messages = self._ask_evaluators(number, arrays, config, run.grid)
            run.evaluated = run.give_secret_ids(messages)
            return messages

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002 (Flower's signature)
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Average the metrics of every well-formed evaluation reply."""
        replies = handed_on(f"{type(self).__name__}.aggregate_evaluate", replies)
        if self._open_run is not None:
            replies = replies_to(self._open_run.evaluated, replies)
        records = screen_evaluations(replies, self._evaluators, self.limits)
        return aggregate_metrics(records, self.evaluate_metrics_aggr_fn, self.weighted_by_key)

    def ask_members(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages by which a round's members are asked to train."""
        raise NotImplementedError

    def members_of(self, server_round: int) -> Collection[ClientNode]:
        """Return who was drawn for the round that goes on."""
        raise NotImplementedError

    def take_in_replies(
        self, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the model that a round's replies lead to, and the clients' metrics."""
        raise NotImplementedError

    def _require_noise_fits(self, wrapper: NoiseWrapper, arrays: ArrayRecord) -> None:
        """Raise ConfigError where a wrapper's noise does not hide what a member may add."""

    def _ask_evaluators(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages by which clients are asked to evaluate a model."""
        if self.fraction_evaluate == 0.0:
            return []
        self._evaluators = draw_evaluators(
            self.roster,
            grid,
            server_round,
            share=self.fraction_evaluate,
            least=self.min_evaluate_nodes,
            seed=self.seed,
        )
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(record, node_id, MessageType.EVALUATE) for node_id in self._evaluators]

    # -- the rounds of another loop than `start`

    def _enter_loop_round(self, arrays: ArrayRecord, grid: Grid) -> OpenRun:
        """Begin the run of another loop, or close the round before; return the run."""
        if self._open_run is None:
            self.begin(grid, arrays)
            self._warn_of_no_end()
        run = self._open_run
        assert run is not None  # begin
        run.reach_by(grid)
        self._close_round(arrays)
        return run

    def _warn_of_no_end(self) -> None:
        """Warn where callbacks will not learn that the run has ended."""
        if self.callbacks and not self._ends_by_itself:
            logger.warning(
                "the rounds are not run by %s.start: call its end() after the last one, or what "
                "callbacks do at the end is missing",
                type(self).__name__,
            )

    def _close_round(self, arrays: ArrayRecord | None = None) -> None:
        """Let callbacks look at the model that the last round led to.

        ``arrays`` are those that the loop goes on with: it may have changed what it was given.
        """
        run = self._open_run
        if run is None or not run.has_a_model_to_show:
            return
        if arrays is not None:
            self.model.receive(arrays)
        run.last_examined = run.last_combined
        try:
            self._show_model(run.last_combined, None, Result())
        except StopTraining as stop:
            logger.info("stopped: %s; nobody is asked any more", stop)
            run.is_over = True
        # Not while the exception is handled: callbacks would take it for an error.
        if run.is_over:
            self._tell_end(failed=False)

    @contextmanager
    def _ending_where_it_fails(self) -> Iterator[None]:
        """End a run that has begun, where an error comes."""
        try:
            yield
        except BaseException:
            self.end()
            raise

    # -- after each round

    def _show_model(
        self, server_round: int, evaluate_fn: EvaluateFunction | None, result: Result
    ) -> None:
        """Let the user's evaluation and the callbacks look at the global model.

        Raises
        ------
        StopTraining, TrainingFailedError
            If the run ends with this round.
        ValuationError
            If a callback's metrics are none.
        """
        metrics: dict[str, float] = {}
        no_metrics: list[ValuationError] = []
        if evaluate_fn is not None:
            metrics |= users_metrics(evaluate_fn, server_round, self.model)

        def show_model(callback: Callback) -> None:
            # ``False`` is none as well: ``return is_due and {...}``.
            more_metrics = callback.on_model(server_round, self.model) or None
            try:
                metrics.update(metrics_of(f"{type(callback).__name__}.on_model", more_metrics))
            except ValuationError as error:
                no_metrics.append(error)

        try:
            self.tell(show_model)
        finally:
            self.history.metrics[server_round] = dict(metrics)
            self.tell_all(lambda callback: callback.on_metrics(server_round, metrics))
        self.tell(lambda callback: callback.on_round_end(server_round))
        # The round is as complete as any other: whoever starts again goes on after it.
        if no_metrics:
            raise no_metrics[0]
        if metrics:
            _FLOWER.info("\t└──> Global evaluation: %s", metrics)
            result.evaluate_metrics_serverapp[server_round] = MetricRecord(dict(metrics))
        failure = self._failure
        if failure is not None:
            self._failure = None  # It holds on to the round's updates.
            raise failure
        if self._stop is not None:
            raise self._stop
