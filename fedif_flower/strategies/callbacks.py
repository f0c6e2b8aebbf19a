"""The loop over rounds, and who is told of them: records, checkpoints, what a user adds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedif_flower.errors import FedIFError, ValuationError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.metrics import ReplyLimits, aggregate_metrics, screen_evaluations
from fedif_flower.messages.screened_grid import screened
from fedif_flower.messages.screening import Asked, Screening, Workspace
from fedif_flower.seeding import numpy_generator
from fedif_flower.stages import Stages
from fedif_flower.strategies.failures import MemberFailures
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.strategies.nodes import NodeDirectory, sample_clients, share_of
from fedif_flower.strategies.reports import History, RoundReport
from fedif_flower.strategies.steps import Step
from fedif_flower.strategies.summary import Scoring
from fedif_flower.valuation.ledger import ScoreLedger

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
logger = logging.getLogger(__name__)
_FLOWER = logging.getLogger("flwr")  # Which prints in any program, as Flower's strategies do.


@dataclass(frozen=True)
class Question:
    """Who is asked in a round, and who is not.

    Attributes
    ----------
    server_round : int
        Its number.
    asked : collection of ClientNode
        Those that get the model now.
    at_work : collection of ClientNode
        Those asked in earlier rounds whose replies still count.
    online : sequence of ClientNode
        Everybody who could be reached.
    paused : collection of int
        The client ids of those left out after errors, reached or not.
    candidates : collection of ClientNode
        Those of whom ``asked`` were drawn: neither paused, nor at work, nor barred by a callback.
    grid : Grid, optional
        The way to all of them.
    """

    server_round: int
    asked: Collection[ClientNode]
    at_work: Collection[ClientNode]
    online: Sequence[ClientNode]
    paused: Collection[int]
    candidates: Collection[ClientNode] = ()
    grid: Grid | None = None


class StopTraining(Exception):  # noqa: N818 (as StopIteration: no error)
    """Raised by a callback to end a run in good order after this round."""


class Callback:
    """Is told of every round; a subclass overrides what it needs.

    Each is told in the order in which the strategy has them, and all of one thing before any is
    told of the next: ``on_step`` and ``on_round``, then ``on_model``, ``on_metrics`` and
    ``on_round_end``. An exception ends the run, except for :class:`StopTraining`, which ends it in
    good order.
    """

    def on_start(self, strategy: RunningStrategy) -> None:
        """Look at the strategy before its first round; its model is the one to begin with."""

    def needs_sight(self, strategy: RunningStrategy) -> str:  # noqa: ARG002
        """Return why it cannot stand beside masked rounds; empty if it can."""
        looks = type(self).on_step is not Callback.on_step
        return f"{type(self).__name__} looks at each client's update" if looks else ""

    def admit(self, nodes: Sequence[ClientNode], server_round: int) -> Sequence[ClientNode]:  # noqa: ARG002
        """Return those of the nodes that may be drawn in a round."""
        return nodes

    def awaited(self, server_round: int) -> Mapping[int, Asked]:  # noqa: ARG002
        """Return, by node, who was asked before and is not asked now, and whose reply counts."""
        return {}

    def on_asked(self, question: Question) -> None:
        """Be told whom a round is about to ask."""

    def on_reply(self, server_round: int, node: ClientNode, *, failed: bool) -> None:
        """Be told that a reply of a client came, before it is screened; or an error in its place.

        Told at once, while others are still waited for: it must not take long.
        """

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:  # noqa: ARG002
        """Return what a node's next message holds beside the model and the settings."""
        return {}

    def on_replies(self, server_round: int) -> None:
        """Be told that a round's replies are read from now on: the last step's updates are lost."""

    def on_screened(self, screening: Screening, asked: Mapping[int, Asked]) -> None:
        """Take in what became of everybody whose reply counted in a round, by node."""

    def on_step(self, step: Step) -> None:
        """Take in the step that a round took; not called for a round that failed."""

    def on_round(self, report: RoundReport) -> None:
        """Take in a round's report, once its replies are combined or have failed."""

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float] | None:  # noqa: ARG002
        """Look at the global model after a round; 0: before the first.

        Returns
        -------
        mapping of str to float, optional
            Metrics, which Flower's result holds as ``evaluate_metrics_serverapp``.
        """
        return None

    def on_metrics(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics that evaluation and all callbacks gave for a round's model."""

    def on_round_end(self, server_round: int) -> None:
        """Be told that all have taken in a round's metrics, and none raised an error."""

    def on_end(self) -> None:
        """Be told that there are no more rounds, whether they ended in good order or not."""


class RunningStrategy(FedAvg):
    """Flower's ``FedAvg`` with rounds that are counted from the first process on, and told of.

    After each round, clients drawn from the seed, the user's evaluation and callbacks look at the
    global model. No error of an evaluation ends a run that has begun: a model that the user's
    cannot bear is taken back.
    """

    combines_updates = True  # Whether a step is a sum of updates times coefficients.
    ledger: ScoreLedger | None = None  # Keeps a weight score of each client.
    model: GlobalModel
    history: History
    stages: Stages
    nodes: NodeDirectory
    failures: MemberFailures
    limits: ReplyLimits
    callbacks: list[Callback]
    own_callbacks: Sequence[Callback] = ()  # The strategy's; they are told first.
    seed: int
    completed_rounds = 0  # By earlier processes, and by this one.
    _evaluators: Sequence[int] = ()
    _stop: StopTraining | None = None  # After this round.

    @cached_property
    def workspace(self) -> Workspace:
        """Room for what replies hold."""
        raise NotImplementedError

    @property
    def scoring(self) -> Scoring | None:
        """How the weight scores come about; ``None``: nothing is smoothed."""
        return None if self.ledger is None else Scoring.of(self.ledger)

    @property
    def told(self) -> Sequence[Callback]:
        """Who is told of rounds."""
        return (*self.own_callbacks, *self.callbacks)

    def tell(self, what: Callable[[Callback], object]) -> None:
        """Tell every callback something; one that stops the run does so when the round is over."""
        for callback in self.told:
            try:
                what(callback)
            except StopTraining as stop:
                self._stop = stop

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:  # noqa: ARG002
        """Take the model that a run begins with, and tell callbacks, before anybody is asked."""
        self._stop = None
        self.model.begin(initial_arrays)
        for callback in self.told:
            callback.on_start(self)

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

        See :class:`~fedif_flower.messages.screened_grid.ScreenedGrid`.
        """
        grid, result, started = screened(grid), Result(), time.monotonic()
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self.begin(grid, initial_arrays)
        last_round = self.completed_rounds + num_rounds
        _FLOWER.info("Starting %s strategy: %d rounds", type(self).__name__, num_rounds)
        self.summary()
        try:
            if not self.completed_rounds:  # Else an earlier process has looked at its last model.
                self._look(0, evaluate_fn, result)
            for server_round in range(self.completed_rounds + 1, last_round + 1):
                _FLOWER.info("[ROUND %d/%d]", server_round, last_round)
                model = self.model.record
                asked = self.configure_train(server_round, model, train_config, grid)
                replies = grid.send_and_receive(asked, timeout=timeout)
                made, metrics = self.aggregate_train(server_round, replies)
                result.arrays = made or result.arrays
                if metrics is not None:
                    _FLOWER.info("\t└──> Aggregated MetricRecord: %s", metrics)
                    result.train_metrics_clientapp[server_round] = metrics
                model = self.model.record
                asked = self.configure_evaluate(server_round, model, evaluate_config, grid)
                if asked := list(asked):
                    replies = grid.send_and_receive(asked, timeout=timeout)
                    metrics = self.aggregate_evaluate(server_round, replies)
                    if metrics is not None:
                        _FLOWER.info("\t└──> Evaluated MetricRecord: %s", metrics)
                        result.evaluate_metrics_clientapp[server_round] = metrics
                self.completed_rounds = server_round
                self._look(server_round, evaluate_fn, result)
            seconds = time.monotonic() - started
            _FLOWER.info("Strategy execution finished in %.2fs\n%s", seconds, result)
        except StopTraining as stop:
            logger.info("stopped: %s", stop)
        finally:
            for callback in self.told:
                callback.on_end()
        for remark in filter(None, (stage.remark() for stage in self.stages)):
            logger.info("%s", remark)
        if result.arrays:
            result.arrays = self.model.record  # The last may have been taken back.
        return result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate the new model, by draws of their own, and send it."""
        if self.fraction_evaluate == 0.0:
            return []
        needed = max(self.min_evaluate_nodes, 1)
        nodes = self.nodes.online(grid, needed, "min_evaluate_nodes")
        free = self.failures.available(nodes, server_round, needed)
        size = share_of(len(nodes), self.fraction_evaluate, self.min_evaluate_nodes)
        generator = numpy_generator("sample-evaluators", self.seed, server_round)
        self._evaluators = [node.node_id for node in sample_clients(free, size, generator)]
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(record, node_id, MessageType.EVALUATE) for node_id in self._evaluators]

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002 (Flower's signature)
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Average the metrics of every well-formed evaluation reply."""
        records = screen_evaluations(replies, self._evaluators, self.limits)
        return aggregate_metrics(records, self.evaluate_metrics_aggr_fn, self.weighted_by_key)

    def _look(
        self, server_round: int, evaluate_fn: EvaluateFunction | None, result: Result
    ) -> None:
        """Let the user's evaluation and the callbacks look at the global model."""
        metrics: dict[str, float] = {}
        if evaluate_fn is not None:
            metrics |= self._evaluated(server_round, evaluate_fn)
        try:
            self.tell(lambda one: metrics.update(one.on_model(server_round, self.model) or {}))
        finally:
            self.history.metrics[server_round] = dict(metrics)
            self.tell(lambda one: one.on_metrics(server_round, metrics))
        self.tell(lambda one: one.on_round_end(server_round))
        if metrics:
            _FLOWER.info("\t└──> Global evaluation: %s", metrics)
            result.evaluate_metrics_serverapp[server_round] = MetricRecord(dict(metrics))
        if self._stop is not None:
            raise self._stop

    def _evaluated(self, server_round: int, evaluate_fn: EvaluateFunction) -> Mapping[str, float]:
        """Return the metrics of the user's own evaluation; none where it fails."""
        try:
            found = self.model.examined(lambda arrays: evaluate_fn(server_round, arrays))
        except Exception as error:
            ours = isinstance(error, FedIFError) and not isinstance(error, ValuationError)
            if ours or not server_round:
                raise
            logger.error("round %d: the evaluation failed: %r", server_round, error)
            return {}
        return {} if found is None else dict(found)  # type: ignore[arg-type]
