"""The loop over rounds, as Flower's, with resumed runs, callbacks and guarded evaluation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedif_flower.errors import FedIFError, ValuationError
from fedif_flower.strategies.callbacks import Callback, StopTraining
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.strategies.reports import History

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
logger = logging.getLogger(__name__)
_FLOWER = logging.getLogger("flwr")  # Which prints in any program, as Flower's strategies do.


@dataclass
class RoundLoop:
    """Lets a strategy play rounds, which are counted from the first process on.

    After each round, the user's evaluation and the strategy's callbacks look at the global model.
    No error of the evaluation ends a run that has begun: a model that it cannot bear is taken back.

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
    grid : Grid
        The way to the clients.
    timeout : float
        Seconds that a round waits for them.
    train_config, evaluate_config : ConfigRecord
        What they are told.
    evaluate_fn : callable, optional
        The user's own evaluation, as Flower's strategies take it.
    """

    strategy: Strategy
    model: GlobalModel
    history: History
    callbacks: Sequence[Callback]
    grid: Grid
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFunction | None
    result: Result = field(default_factory=Result)

    def run(self, arrays: ArrayRecord, rounds: range) -> Result:
        """Run the rounds of these numbers; before the first of all, 1, the model is looked at."""
        started = time.monotonic()
        _FLOWER.info("Starting %s strategy: %d rounds", type(self.strategy).__name__, len(rounds))
        self.strategy.summary()
        try:
            if rounds.start == 1:  # Else an earlier process has looked at the model that it left.
                self._look(0)
            for server_round in rounds:
                _FLOWER.info("[ROUND %d/%d]", server_round, rounds.stop - 1)
                arrays = self._play(arrays, server_round)
                self._look(server_round)
            seconds = time.monotonic() - started
            _FLOWER.info("Strategy execution finished in %.2fs\n%s", seconds, self.result)
        except StopTraining as stop:
            logger.info("stopped: %s", stop)
        finally:
            for callback in self.callbacks:
                callback.on_end()
        if self.result.arrays:
            self.result.arrays = self.model.current(self.result.arrays)
        return self.result

    def _play(self, arrays: ArrayRecord, server_round: int) -> ArrayRecord:
        """Play a round; return the model that it leads to."""
        strategy, grid, result = self.strategy, self.grid, self.result
        asked = strategy.configure_train(
            server_round, self.model.current(arrays), self.train_config, grid
        )
        replies = grid.send_and_receive(asked, timeout=self.timeout)
        made, metrics = strategy.aggregate_train(server_round, replies)
        if made is not None:
            arrays = result.arrays = made
        if metrics is not None:
            _FLOWER.info("\t└──> Aggregated MetricRecord: %s", metrics)
            result.train_metrics_clientapp[server_round] = metrics
        asked = strategy.configure_evaluate(
            server_round, self.model.current(arrays), self.evaluate_config, grid
        )
        if asked := list(asked):
            replies = grid.send_and_receive(asked, timeout=self.timeout)
            metrics = strategy.aggregate_evaluate(server_round, replies)
            if metrics is not None:
                _FLOWER.info("\t└──> Evaluated MetricRecord: %s", metrics)
                result.evaluate_metrics_clientapp[server_round] = metrics
        return arrays

    def _look(self, server_round: int) -> None:
        """Let the user's evaluation and the callbacks look at the global model."""
        metrics: dict[str, float] = {**self._evaluate(server_round)}
        stop: StopTraining | None = None
        try:
            try:
                for callback in self.callbacks:
                    metrics.update(callback.on_model(server_round, self.model) or {})
            finally:
                self.history.metrics[server_round] = dict(metrics)
                for callback in self.callbacks:
                    callback.on_metrics(server_round, metrics)
        except StopTraining as raised:
            stop = raised  # The round is complete all the same.
        for callback in self.callbacks:
            callback.on_round_end(server_round)
        if stop is not None:
            raise stop
        if metrics:
            _FLOWER.info("\t└──> Global evaluation: %s", metrics)
            self.result.evaluate_metrics_serverapp[server_round] = MetricRecord(dict(metrics))

    def _evaluate(self, server_round: int) -> Mapping[str, float]:
        """Return the metrics of the user's own evaluation; none where it fails."""
        evaluate = self.evaluate_fn
        if evaluate is None:
            return {}
        try:
            found = self.model.examined(lambda arrays: evaluate(server_round, arrays))
        except Exception as error:
            ours = isinstance(error, FedIFError) and not isinstance(error, ValuationError)
            if ours or not server_round:
                raise
            logger.error("round %d: the evaluation failed: %r", server_round, error)
            return {}
        return {} if found is None else dict(found)  # type: ignore[arg-type]
