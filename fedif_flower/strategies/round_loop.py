"""Flower's loop over rounds, with resumed runs, callbacks and guarded evaluation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedif_flower.errors import FedIFError, ValuationError
from fedif_flower.strategies.callbacks import Callback, StopTraining
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.strategies.history import History

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
logger = logging.getLogger(__name__)
_FLOWER = logging.getLogger("flwr")


class _FlowersLog(logging.Filter):
    """Lets Flower's log name the strategy, and count the rounds of earlier processes too."""

    def __init__(self, strategy: Strategy, offset: int) -> None:
        super().__init__()
        self._name = type(strategy).__name__
        self._offset = offset
        self._thread = get_ident()  # Other threads may run other federations.

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread == self._thread and isinstance(record.args, tuple):
            if record.msg == "Starting %s strategy:":
                record.args = (self._name,)
            elif record.msg == "[ROUND %s/%s]":
                record.args = tuple(int(str(n)) + self._offset for n in record.args)
        return True


class RoundLoop(Strategy):
    """Stands between Flower's loop, which counts from 1, and a strategy.

    Rounds of an earlier process are added to Flower's count here and nowhere else. After each
    round, the user's evaluation and the strategy's callbacks look at the global model. No error of
    the evaluation ends a run that has begun: a model that it cannot bear is taken back.

    Parameters
    ----------
    strategy : Strategy
        Says what happens in a round.
    model : GlobalModel
        The strategy's.
    history : History
        Keeps each round's metrics.
    callbacks : sequence of Callback
        Told of each round's model and metrics, and of the end.
    completed_rounds : int
        By earlier processes.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: GlobalModel,
        history: History,
        callbacks: Sequence[Callback],
        completed_rounds: int,
    ) -> None:
        self.strategy = strategy
        self.offset = completed_rounds
        self._model = model
        self._history = history
        self._callbacks = callbacks
        self._evaluate_fn: EvaluateFunction | None = None
        self._so_far = Result()

    def run(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: EvaluateFunction | None,
    ) -> Result:
        """Run the rounds; the result's rounds are counted from the first process on.

        ``evaluate_fn`` is the user's own, as Flower's strategies take it.
        """
        self._evaluate_fn = evaluate_fn
        told = _FlowersLog(self.strategy, self.offset)
        _FLOWER.addFilter(told)
        try:
            self.start(
                grid,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                self._look,
            )
        except StopTraining as stop:
            logger.info("stopped: %s", stop)
        finally:
            _FLOWER.removeFilter(told)
            for callback in self._callbacks:
                callback.on_end()
        if self._so_far.arrays:
            self._so_far.arrays = self._model.current(self._so_far.arrays)
        return self._so_far

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the strategy for the round's messages."""
        current = self._model.current(arrays)
        return self.strategy.configure_train(server_round + self.offset, current, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy combine the replies."""
        server_round += self.offset
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        if arrays is not None:
            self._so_far.arrays = arrays
        if metrics is not None:
            self._so_far.train_metrics_clientapp[server_round] = metrics
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the strategy who evaluates the new model."""
        current = self._model.current(arrays)
        return self.strategy.configure_evaluate(server_round + self.offset, current, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy average the clients' metrics."""
        server_round += self.offset
        metrics = self.strategy.aggregate_evaluate(server_round, replies)
        if metrics is not None:
            self._so_far.evaluate_metrics_clientapp[server_round] = metrics
        return metrics

    def summary(self) -> None:
        """Log the strategy's settings."""
        self.strategy.summary()

    def _look(self, flower_round: int, arrays: ArrayRecord) -> MetricRecord | None:  # noqa: ARG002
        """Let the user's evaluation and the callbacks look at the global model."""
        if self.offset and not flower_round:
            return None  # An earlier process has looked at the model that it left.
        server_round = flower_round + self.offset
        metrics: dict[str, float] = {**self._evaluate(server_round)}
        stop: StopTraining | None = None
        try:
            try:
                for callback in self._callbacks:
                    metrics.update(callback.on_model(server_round, self._model) or {})
            finally:
                self._history.metrics[server_round] = dict(metrics)
                for callback in self._callbacks:
                    callback.on_metrics(server_round, metrics)
        except StopTraining as raised:
            stop = raised  # The round is complete all the same.
        for callback in self._callbacks:
            callback.on_round_end(server_round)
        if stop is not None:
            raise stop
        if not metrics:
            return None
        record = self._so_far.evaluate_metrics_serverapp[server_round] = MetricRecord(dict(metrics))
        return record

    def _evaluate(self, server_round: int) -> Mapping[str, float]:
        """Return the metrics of the user's own evaluation; none where it fails."""
        evaluate = self._evaluate_fn
        if evaluate is None:
            return {}
        try:
            found = self._model.examined(lambda arrays: evaluate(server_round, arrays))
        except Exception as error:
            ours = isinstance(error, FedIFError) and not isinstance(error, ValuationError)
            if ours or not server_round:
                raise
            logger.error("round %d: the evaluation failed: %r", server_round, error)
            return {}
        return {} if found is None else dict(found)  # type: ignore[arg-type]
