"""How a run's new models are measured on held-out data, and which of the metrics are written."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from flwr.app import ArrayRecord

from fedif_flower.errors import with_place
from fedif_flower.messages.text import printable
from fedif_flower.run.folder import MEASURED
from fedif_flower.server.model import GlobalModel
from fedif_flower.server.record import Round
from fedif_flower.tasks.task import Metric
from fedif_flower.valuation import Validation

TRIGGERED = "triggered"  # The split whose examples have a backdoor's trigger.
logger = logging.getLogger(__name__)


class RoundEvaluation:
    """Measures new models on held-out data, and adds the metrics to the records of their rounds.

    Parameters
    ----------
    judges : mapping of str to Validation
        The data by split: ``"validation"``, ``"test"``, and :data:`TRIGGERED`.
    metrics : sequence of Metric
        What is measured beside loss and accuracy.
    every : int
        Rounds from one evaluation to the next, >= 1.

    Attributes
    ----------
    columns : list of str
        The columns of ``rounds.csv`` for ``metrics`` and for what callbacks measure, in addition
        to the columns that it always has.
    last_round : int, optional
        The run's last round, if it is known: its model is evaluated in any case.
    """

    def __init__(
        self, judges: Mapping[str, Validation], metrics: Sequence[Metric], every: int
    ) -> None:
        self.judges = judges
        self._every = every
        self._measures = ["accuracy", "loss", *(metric.key for metric in metrics)]
        self.columns: list[str] = []
        for metric in metrics:
            self.columns += [f"test_{metric.key}", f"validation_{metric.key}"]
        self.last_round: int | None = None
        # How the evaluation went in the round whose line is to be written next, if there was one.
        self._outcome: _Outcome | None = None

    def is_due(self, server_round: int) -> bool:
        """Whether a round's model is to be evaluated."""
        return server_round % self._every == 0 or server_round == self.last_round

    @property
    def is_evaluated(self) -> bool:
        """Whether the current round's model was evaluated, even if the evaluation failed."""
        return self._outcome is not None

    def evaluate(self, server_round: int, model: GlobalModel) -> Mapping[str, float]:
        """Return the metrics of a round's model; none if there are no data or evaluation fails.

        A model that cannot be measured is taken back: the model before it becomes global again. An
        error before the first round (0) ends the run.
        """
        if not self.judges:
            return {}
        started = time.perf_counter()
        try:
            metrics = model.evaluate_or_take_back(lambda record: self._measure(model, record))
        except Exception as error:  # The user's model or loss may raise anything: the run goes on.
            if not server_round:
                raise
            reason = printable(f"the evaluation failed: {with_place(error)}")
            logger.error("round %d: %s", server_round, reason)
            self._outcome = _Outcome(0.0, reason)
            return {}
        self._outcome = _Outcome(time.perf_counter() - started)
        return metrics

    def _measure(self, model: GlobalModel, record: ArrayRecord) -> dict[str, float]:
        """Return the metrics of a record on all splits: of the global model, or the one before."""
        vectors = model.vectors
        if record is not model.record:  # The global model could not be measured: the one before is.
            vectors = model.layout.to_vectors(record)
        buffers = model.layout.named_buffers(vectors)
        metrics: dict[str, float] = {}
        for split, judge in self.judges.items():
            if split == TRIGGERED:
                metrics["attack-success"] = judge.accuracy(vectors.params, buffers)
                continue
            measured = judge.measure(vectors.params, buffers)
            for key in self._measures:
                if key in measured:
                    metrics[f"{split}-{key.replace('_', '-')}"] = measured[key]
        return metrics

    def add_to(self, current: Round, metrics: Mapping[str, float]) -> Round:
        """Return a round's record as it is written: with the evaluation of its model, if any.

        Afterwards no evaluation is remembered: the next round begins without one.
        """
        outcome = self._outcome
        self._outcome = None
        if outcome is None:
            outcome = _Outcome()
        reasons = [reason for reason in (current.reason, outcome.failure) if reason]
        return replace(
            current,
            reason="; ".join(reasons),
            evaluation_seconds=outcome.seconds,
            metrics={**current.metrics, **self._by_column(metrics)},
        )

    def _by_column(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics that have a column in ``rounds.csv``, by column."""
        by_column = {name.replace("-", "_"): value for name, value in metrics.items()}
        written = {}
        for column in (*MEASURED, *self.columns):
            value = by_column.get(column)
            if not isinstance(value, int | float):  # An ``evaluate_fn`` may give lists.
                continue
            if column.endswith("_accuracy") and math.isnan(value):  # Accuracy is not defined.
                continue
            written[column] = value
        return written


class _Outcome(NamedTuple):
    """How the evaluation of a round's model went."""

    seconds: float = 0.0
    failure: str = ""  # Why the evaluation failed; empty: it did not fail.
