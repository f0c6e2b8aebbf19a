"""How a run's new models are measured on held-out data, and what of it is written."""

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
    """Measures new models on held-out data, and adds what it finds to their rounds.

    Parameters
    ----------
    judges : mapping of str to Validation
        The data by split: ``"validation"``, ``"test"``, and test examples with a trigger.
    metrics : sequence of Metric
        What is measured beside loss and accuracy.
    every : int
        Rounds from one evaluation to the next, >= 1.

    Attributes
    ----------
    columns : list of str
        Columns of ``rounds.csv`` beside those that it always has.
    last_round : int, optional
        Whose model is evaluated in any case.
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
        self._outcome: _Outcome | None = None  # Of a round whose line is not written yet.

    def is_due(self, server_round: int) -> bool:
        """Tell whether a round's model is to be evaluated."""
        return server_round % self._every == 0 or server_round == self.last_round

    @property
    def is_evaluated(self) -> bool:
        """Whether the model of the round at hand was evaluated, if only in vain."""
        return self._outcome is not None

    def evaluate(self, server_round: int, model: GlobalModel) -> Mapping[str, float]:
        """Return the metrics of a round's model; none where there are no data or it fails.

        A model that cannot be measured is taken back; before the first round, the error ends the
        run.
        """
        if not self.judges:
            return {}
        started = time.perf_counter()
        try:
            metrics = model.evaluate_or_take_back(lambda record: self._measure(model, record))
        except Exception as error:  # out of the model or the loss: the run goes on
            if not server_round:
                raise
            reason = printable(f"the evaluation failed: {with_place(error)}")
            logger.error("round %d: %s", server_round, reason)
            self._outcome = _Outcome(0.0, reason)
            return {}
        self._outcome = _Outcome(time.perf_counter() - started)
        return metrics

    def _measure(self, model: GlobalModel, record: ArrayRecord) -> dict[str, float]:
        """Return what the splits say of a round's model, or of one before it."""
        vectors = model.vectors
        if record is not model.record:
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
        """Return a round as it is written: with the evaluation of its model, if there was one.

        The next round's model is not evaluated yet.
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
        """Return those metrics that have a column of ``rounds.csv``, by column."""
        by_column = {name.replace("-", "_"): value for name, value in metrics.items()}
        written = {}
        for column in (*MEASURED, *self.columns):
            value = by_column.get(column)
            if not isinstance(value, int | float):  # An ``evaluate_fn`` may give lists.
                continue
            if column.endswith("_accuracy") and math.isnan(value):  # It is not defined.
                continue
            written[column] = value
        return written


class _Outcome(NamedTuple):
    """How the evaluation of a round's model went."""

    seconds: float = 0.0
    failure: str = ""  # Why it failed; empty: it did not.
