"""The server's evaluation of each new model, on its validation and its test split."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from fedif_flower.messages.text import printable
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.tasks.task import Metric
from fedif_flower.valuation import Validation

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluated:
    """What a model was measured by.

    Attributes
    ----------
    metrics : mapping of str to float
        Such as ``test-accuracy``, and ``attack-success`` where there is a backdoor.
    seconds : float
        How long it took.
    reason : str
        Why there are no metrics although there should be some.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""


class ServerEvaluation:
    """Measures models on held-out data; one that cannot be measured is taken back.

    Parameters
    ----------
    validation, test : Validation, optional
        The two splits.
    metrics : sequence of Metric
        What is measured beside loss and accuracy.
    triggered : Validation, optional
        Test examples with a backdoor's trigger, labelled with its target.
    """

    def __init__(
        self,
        validation: Validation | None,
        test: Validation | None,
        metrics: Sequence[Metric] = (),
        triggered: Validation | None = None,
    ) -> None:
        self._splits = {"validation": validation, "test": test}
        self._keys = ("accuracy", "loss", *(metric.key for metric in metrics))
        self._triggered = triggered

    def evaluate(self, server_round: int, model: GlobalModel) -> Evaluated:
        """Return the metrics of a round's model; an error ends the run before its first round."""
        if not any(self._splits.values()):
            return Evaluated()
        started = time.perf_counter()

        def measure(record: ArrayRecord) -> dict[str, float]:
            vectors = model.vectors_of(record)
            buffers = model.layout.named_buffers(vectors)
            metrics: dict[str, float] = {}
            for split, judge in self._splits.items():
                found = judge.measure(vectors.params, buffers) if judge else {}
                metrics |= {
                    f"{split}-{key.replace('_', '-')}": found[key]
                    for key in self._keys
                    if key in found
                }
            if self._triggered:
                metrics["attack-success"] = self._triggered.accuracy(vectors.params, buffers)
            return metrics

        try:
            metrics = model.examined(measure)
        except Exception as error:  # out of the model or the loss: the run goes on
            if not server_round:
                raise
            reason = printable(f"the evaluation failed: {error!r}")
            logger.error("round %d: %s", server_round, reason)
            return Evaluated(reason=reason)
        return Evaluated(metrics, time.perf_counter() - started)
