"""A run from its first round to its last, in any loop, and the callbacks that are told of it."""

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

from fedif_flower.errors import ConfigError, TrainingFailedError, ValuationError, with_place
from fedif_flower.intake.intake import Intake
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import ROUND_KEY
from fedif_flower.messages.metrics import ReplyLimits, aggregate_metrics, screen_evaluations
from fedif_flower.messages.screened_grid import screened
from fedif_flower.server.arguments import require_start
from fedif_flower.server.evaluation import (
    EvaluateFunction,
    draw_evaluators,
    metrics_of,
    users_metrics,
)
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
# Flower's logger, on which Flower's strategies log: it prints in any program.
_FLOWER = logging.getLogger("flwr")


class StopTraining(Exception):  # noqa: N818 (as StopIteration: no error)
    """Raised by a callback to end a run in good order after this round.

    If ``on_asked`` raises it, the run ends before that round. If ``on_start`` raises it, no run
    begins, and the caller of ``start`` receives the exception.
    """


class Callback:
    """Is told of every round; a subclass overrides the methods that it needs.

    Callbacks are told in the order of the strategy's list. In a round, ``on_asked`` is called when
    its members are drawn. When their replies are combined, each callback in turn gets ``on_step``
    (if there was a step) and ``on_round``. Then all get ``on_model``, then all get ``on_metrics``,
    then all get ``on_round_end``.

    An exception ends the run. :class:`StopTraining` ends it in good order. All callbacks get
    ``on_metrics`` even if one of them raises, since the round is complete by then.
    """

    def on_start(self, strategy: RunningStrategy) -> None:
        """Look at the strategy before its first round; ``strategy.model`` is the initial model."""

    def why_updates_are_read(self, strategy: RunningStrategy) -> str:  # noqa: ARG002
        """Return why the callback needs to see each client's update; empty if it does not.

        A run that hides updates from the server refuses callbacks that need to see them.
        """
        looks = type(self).on_step is not Callback.on_step
        return f"{type(self).__name__} looks at each client's update" if looks else ""

    def on_asked(self, current: Round) -> None:
        """Look at a round whose members are drawn, before they are asked."""

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:  # noqa: ARG002
        """Return further records for a node's next message, besides model and settings, by name."""
        return {}

    def on_step(self, step: Step) -> None:
        """Take in the step that a round took; not called for a round without a step."""

    def on_round(self, current: Round) -> None:
        """Take in a round whose replies are combined, or could not be."""

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float] | None:  # noqa: ARG002
        """Look at the global model after a round; 0: before the first.

        Returns
        -------
        mapping of str to float, optional
            Metrics, which Flower's result holds as ``evaluate_metrics_serverapp``; ``None``, an
            empty mapping and ``False`` mean that there are none. Any other value ends the run with
            a ``ValuationError`` once the round is complete.
        """
        return None

    def on_metrics(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics that evaluation and all callbacks gave for a round's model."""

    def on_round_end(self, server_round: int) -> None:
        """Finish a round: all callbacks have taken in its metrics, and none raised an error."""

    def on_end(self) -> None:
        """Finish: there are no more rounds, whether the run ended in good order or by an error.

        Every callback whose ``on_start`` returned is told of the end, even if the ``on_start`` of
        another callback failed.
        """


class RunningStrategy(FedAvg):
    """Flower's ``FedAvg`` with callbacks, and rounds that are counted over restarts of a run.

    After each round the global model is evaluated: by clients drawn by the seed, by the user's
    ``evaluate_fn``, and by callbacks. An error of ``evaluate_fn`` does not end a run that has
    begun, unless it is an error of this package other than a ValuationError. If the model is the
    cause of the error, it is taken back.

    A loop that is not :meth:`start` may call Flower's methods itself, such as the loop of a
    strategy that wraps this one. Then the first call of :meth:`configure_train` or
    :meth:`configure_evaluate` begins the run, and each later one closes the round before. Such a
    loop has to call :meth:`end` after its last round, since nothing else tells that it was the
    last. A subclass with a ``start`` of its own need not: its ``start`` is wrapped so that it does.
    """

    combines_updates = True  # Whether a step is a sum of updates times coefficients.
    sets_lengths = False  # Whether its weights contain factors that bring updates to other lengths.
    chooses_one = False  # Whether the new model may have to be one client's model, bit for bit.
    ledger: ScoreLedger | None = None  # Keeps the weight score of each client.
    model: GlobalModel
    history: History
    stages: Stages
    roster: Roster
    intake: Intake
    limits: ReplyLimits
    callbacks: list[Callback]
    seed: int
    completed_rounds = 0  # In earlier processes of the run, and in this one.
    _open_run: OpenRun | None = None  # The run that has begun and not ended.
    _ends_by_itself = False  # Whether a subclass's own `start` is running, which ends its run.
    _evaluators: Sequence[int] = ()  # The ids of the nodes that were asked to evaluate last.
    _told_of_unread_replies = False  # Whether the log has said that a subclass reads none.
    _stop: StopTraining | None = None  # Raised once the round is complete: a callback's wish.
    _failure: TrainingFailedError | None = None  # Likewise, if too many rounds or members failed.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap methods that a subclass overrides.

        Its own ``start`` ends the run as this class's does (:func:`with_an_end`). Its own
        ``aggregate_train`` and ``aggregate_evaluate`` may go through the replies before they hand
        them on (:func:`may_look_through_replies`).
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
        """The directory of members: which are known, and which are online."""
        return self.roster.directory

    @property
    def scoring(self) -> Scoring | None:
        """How weight scores follow from a round's scores; ``None`` if the strategy keeps none."""
        if self.ledger is None:
            return None
        return Scoring.of(self.ledger)

    @property
    def is_stopping(self) -> bool:
        """Whether a callback has asked for the run to end after this round."""
        return self._stop is not None

    def tell(self, notify: Callable[[Callback], object]) -> None:
        """Call ``notify`` for each callback; its StopTraining ends the run after the round.

        Any other exception is raised at once: the callbacks that follow are not told.
        """
        for callback in self.callbacks:
            try:
                notify(callback)
            except StopTraining as stop:
                self._stop = stop

    def _errors_of_all(self, notify: Callable[[Callback], object]) -> list[BaseException]:
        """Call ``notify`` for each callback, even if some raise, and return their errors.

        It is for what every callback has to know, such as that a round is complete.
        """
        errors: list[BaseException] = []
        for callback in self.callbacks:
            try:
                notify(callback)
            except StopTraining as stop:
                self._stop = stop
            except BaseException as error:
                errors.append(error)
        return errors

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Take the model that a run begins with, and tell callbacks of the start."""
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
            # All starts succeeded: `end` calls `on_end` later, not this block.
            started.pop_all()
        last_examined = -1
        if self.completed_rounds:
            last_examined = 0  # Callbacks of an earlier process have looked at this model.
        self._open_run = OpenRun(grid, screened(grid), last_examined=last_examined)

    def end(self) -> None:
        """End the run: close its last round, and tell callbacks that there are no more.

        A loop that calls Flower's methods itself calls this after its last round. Without an open
        run it does nothing. If an exception is being handled, the run ends as failed: the round
        that was not completed is given up.
        """
        run = self._open_run
        if run is None:
            return
        failed = sys.exception() is not run.exception_at_start
        if failed:
            self._give_up_round()
        try:
            if not (run.is_strategys_loop or failed):
                self._close_round()
        finally:
            self._open_run = None
            if not run.is_over:
                self._tell_end(failed=failed)

    def _give_up_round(self) -> None:
        """Take back the step of a round that an error ended, since its number will be run again."""
        given_up = self.history.after(self.completed_rounds)
        if any(record.status == "advanced" for record in given_up):
            self.model.take_back()
        self.forget_given_up()

    def forget_given_up(self) -> None:
        """Forget what was learned in a round that an error ended."""

    def _tell_end(self, *, failed: bool) -> None:
        """Tell callbacks of the end; after a run that did not fail, log the stages' remarks.

        If the run failed, errors of callbacks are logged: the caller gets the error that ended it.
        """
        errors = self._errors_of_all(lambda callback: callback.on_end())
        if failed:
            for error in errors:
                logger.error("a callback fails at the end of the run: %s", with_place(error))
            return
        if errors:
            raise errors[0]
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
        """Run ``num_rounds`` rounds, as Flower's ``Strategy.start`` does.

        Replies are screened (see :class:`~fedif_flower.messages.screened_grid.ScreenedGrid`). A
        round that an error ends is given up, and its step is taken back: if the strategy is
        started again, it runs that round again.

        Parameters
        ----------
        grid : Grid
            The connection to the clients, as a ServerApp's ``main`` receives it.
        initial_arrays : ArrayRecord
            The model to begin with.
        num_rounds : int
            How many rounds to run, >= 0, after those that are completed already.
        timeout : float
            Seconds for which a round waits for replies, >= 0; ``None``: without an end.
        train_config, evaluate_config : ConfigRecord, optional
            Settings that are sent with the model to clients that train, and that evaluate.
        evaluate_fn : callable, optional
            Takes a round and its model as an ArrayRecord; returns a MetricRecord or ``None``.

        Returns
        -------
        Result
            Flower's result. Its ``arrays`` are the model that the run ended with: the initial
            model if no round led to another one.

        Raises
        ------
        ConfigError, ValueError
            If an argument is out of range or of a wrong type, and as :meth:`begin` says.
        TrainingFailedError
            If too few nodes come online, if most members fail, or if too many rounds in a row
            fail.
        """
        configs = {"train_config": train_config, "evaluate_config": evaluate_config}
        require_start(grid, num_rounds, timeout, configs, evaluate_fn)
        require_constructed(self)
        self.intake.settings.pace.require_within(timeout)
        self.end()  # A run that another loop has left open.
        started = time.monotonic()
        grid = screened(grid)
        result = Result()
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        with self._ending_where_it_fails():
            self.begin(grid, initial_arrays)
            assert self._open_run is not None  # begin
            self._open_run.is_strategys_loop = True
            _FLOWER.info("Starting %s strategy: %d rounds", type(self).__name__, num_rounds)
            self.summary()
        last_round = self.completed_rounds + num_rounds
        try:
            # After a restart, callbacks of an earlier process have looked at this model.
            if not self.completed_rounds:
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
        """Let a round's members train, and go on with the model that their replies lead to."""
        before = self.model.record
        whose = type(self).__name__
        # A subclass may override these two methods, so their results are checked.
        returned = self.configure_train(server_round, before, config, grid)
        messages = messages_of(f"{whose}.configure_train", returned)
        require_messages(f"{whose}.configure_train", messages, self.members_of(server_round))
        replies = grid.send_and_receive(messages, timeout=timeout)
        combined = self.aggregate_train(server_round, replies)
        arrays, metrics = pair_of(f"{whose}.aggregate_train", combined)
        if arrays is None:
            arrays = before
        elif messages and not self.history.after(server_round - 1):
            self._warn_of_unread_replies(server_round)
        take_model(f"{whose}.aggregate_train", arrays, self.model)
        if metrics is not None:
            _FLOWER.info("\t└──> Aggregated MetricRecord: %s", metrics)
            result.train_metrics_clientapp[server_round] = metrics

    def _warn_of_unread_replies(self, server_round: int) -> None:
        """Warn once that a subclass makes a model without the strategy, which has no record."""
        if self._told_of_unread_replies:
            return
        self._told_of_unread_replies = True
        whose = f"{type(self).__name__}.aggregate_train"
        logger.warning(
            "round %d: %s makes a model without super().aggregate_train: replies are neither "
            "screened nor weighed by the strategy, and such a round is not in its history",
            server_round,
            whose,
        )

    def _evaluate_at_clients(
        self, server_round: int, grid: Grid, timeout: float, config: ConfigRecord, result: Result
    ) -> None:
        """Let clients evaluate the new model, if ``fraction_evaluate`` is not 0."""
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
        """Draw the round's clients, and return the messages that send them the model.

        In a loop that is not :meth:`start`, the first call begins the run. A later call first lets
        callbacks look at ``arrays``, the model that the loop goes on with. After a callback has
        ended the run, the list of messages is empty.
        """
        run = self._open_run
        if run is not None and run.is_strategys_loop:
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
            The model to go on with, and the clients' metrics. If the round makes no new model,
            :meth:`start`, and a wrapper that would add noise to it, get ``None``; another loop gets
            the model that stays.

        Raises
        ------
        ConfigError
            If no run has begun, or the replies are an iterator that was gone through before.
        TrainingFailedError
            If most members fail, or too many rounds in a row failed; in a loop that is not
            :meth:`start`, which raises it after the round.
        """
        run = self._open_run
        if run is None:
            raise ConfigError(
                f"{type(self).__name__}.aggregate_train: no clients were asked by its "
                "configure_train, which one of your own has to call (super().configure_train)"
            )
        replies = handed_on(f"{type(self).__name__}.aggregate_train", replies)
        if run.is_strategys_loop:
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
        """Draw the clients that evaluate the new model, and return the messages that send it.

        The draw is independent of the draw of the clients that train.
        """
        run = self._open_run
        if run is not None and run.is_strategys_loop:
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
        """Aggregate the metrics of all well-formed evaluation replies; ``None`` if none came."""
        replies = handed_on(f"{type(self).__name__}.aggregate_evaluate", replies)
        if self._open_run is not None:
            replies = replies_to(self._open_run.evaluated, replies)
        records = screen_evaluations(replies, self._evaluators, self.limits)
        return aggregate_metrics(records, self.evaluate_metrics_aggr_fn, self.weighted_by_key)

    def ask_members(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages that ask a round's members to train."""
        raise NotImplementedError

    def members_of(self, server_round: int) -> Collection[ClientNode]:
        """Return the members drawn for ``server_round``; none if that is not the current round."""
        raise NotImplementedError

    def take_in_replies(
        self, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the model that a round's replies lead to, and the clients' metrics."""
        raise NotImplementedError

    def _require_noise_fits(self, wrapper: NoiseWrapper, arrays: ArrayRecord) -> None:
        """Raise ConfigError if a wrapper adds too little noise to hide a member's update."""

    def _ask_evaluators(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw clients, and return the messages that ask them to evaluate a model."""
        if self.fraction_evaluate == 0.0:
            return []
        self._evaluators = draw_evaluators(
            self.roster,
            grid,
            server_round,
            share=self.fraction_evaluate,
            least=self.min_evaluate_nodes,
            at_work=self._still_training(server_round),
            seed=self.seed,
        )
        config[ROUND_KEY] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(record, node_id, MessageType.EVALUATE) for node_id in self._evaluators]

    def _still_training(self, server_round: int) -> set[int]:
        """Return the ids of the nodes that still train when a round's model is evaluated.

        Without late replies, nodes whose reply did not come in time train as well.
        """
        node_ids = set(self.intake.outstanding(server_round + 1))
        for record in self.history.after(server_round - 1):
            late = [client.node for client in record.clients if client.status == "late"]
            node_ids.update(node.node_id for node in late)
        return node_ids

    # -- the rounds of another loop than `start`

    def _enter_loop_round(self, arrays: ArrayRecord, grid: Grid) -> OpenRun:
        """Begin the run of another loop, or close its last round; return the run."""
        if self._open_run is None:
            self.begin(grid, arrays)
            self._warn_of_no_end()
        run = self._open_run
        assert run is not None  # begin
        run.reach_by(grid)
        self._close_round(arrays)
        return run

    def _warn_of_no_end(self) -> None:
        """Warn that callbacks will not learn of the run's end unless the loop calls ``end``."""
        if self.callbacks and not self._ends_by_itself:
            logger.warning(
                "the rounds are not run by %s.start: call its end() after the last one, or what "
                "callbacks do at the end is missing",
                type(self).__name__,
            )

    def _close_round(self, arrays: ArrayRecord | None = None) -> None:
        """Let callbacks look at the model that the last round led to.

        ``arrays`` are the model that the loop goes on with: it may have changed the model that it
        was given, by adding noise for example.
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
        # Outside the except block: a callback that asks sys.exception() would see an error there.
        if run.is_over:
            self._tell_end(failed=False)

    @contextmanager
    def _ending_where_it_fails(self) -> Iterator[None]:
        """End the open run if the block raises."""
        try:
            yield
        except BaseException:
            self.end()
            raise

    # -- after each round

    def _show_model(
        self, server_round: int, evaluate_fn: EvaluateFunction | None, result: Result
    ) -> None:
        """Let the user's evaluation and the callbacks look at the global model; end the round.

        Raises
        ------
        StopTraining, TrainingFailedError
            If the run ends with this round: a callback has asked for it, or too much has failed.
        ValuationError
            If a callback's ``on_model`` returned something that is no metrics.
        """
        metrics: dict[str, float] = {}
        no_metrics: list[ValuationError] = []
        if evaluate_fn is not None:
            metrics |= users_metrics(evaluate_fn, server_round, self.model)

        def show_model(callback: Callback) -> None:
            # ``False`` means no metrics as well, for callbacks that ``return is_due and {...}``.
            more_metrics = callback.on_model(server_round, self.model) or None
            try:
                metrics.update(metrics_of(f"{type(callback).__name__}.on_model", more_metrics))
            except ValuationError as error:
                no_metrics.append(error)

        errors: list[BaseException] = []
        try:
            self.tell(show_model)
        except BaseException as error:
            errors.append(error)
        self.history.metrics[server_round] = dict(metrics)
        errors += self._errors_of_all(lambda callback: callback.on_metrics(server_round, metrics))
        if errors:
            raise errors[0]  # The first: what comes after it may be its consequence.
        self.tell(lambda callback: callback.on_round_end(server_round))
        # Raised only now, when the round is complete and saved: a restart begins after it.
        if no_metrics:
            raise no_metrics[0]
        if metrics:
            _FLOWER.info("\t└──> Global evaluation: %s", metrics)
            result.evaluate_metrics_serverapp[server_round] = MetricRecord(dict(metrics))
        failure = self._failure
        if failure is not None:
            self._failure = None  # Its cause and traceback keep the round's updates in memory.
            raise failure
        if self._stop is not None:
            raise self._stop
