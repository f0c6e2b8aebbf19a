"""The server's evaluation of each new model, on its validation and its test split."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord
from torch import Tensor

from fedif_flower.messages.text import printable
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.valuation import Evaluation, Validation

if TYPE_CHECKING:
    from fedif_flower.run.writer import RunWriter

logger = logging.getLogger(__name__)


class ServerEvaluation(Callback):
    """Evaluates the model every so many rounds, and after the last, into a run's records.

    A model that cannot be evaluated, where the one before it can, is taken back.

    Parameters
    ----------
    validation, test : Validation, optional
        The two splits.
    writer : RunWriter
        Takes each round's line, and says which rounds are due.
    triggered : Validation, optional
        Test examples with a backdoor's trigger, labelled with its target.
    """

    def __init__(
        self,
        validation: Validation | None,
        test: Validation | None,
        writer: RunWriter,
        triggered: Validation | None = None,
    ) -> None:
        self.validation = validation
        self.test = test
        self.writer = writer
        self.triggered = triggered

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float] | None:
        """Write the round's line, with what was measured where it is due, and return them."""
        if not (self.validation or self.test) or not self.writer.is_due(server_round):
            self.writer.on_evaluation(server_round)
            return None
        started = time.perf_counter()

        def examine(
            record: ArrayRecord,
        ) -> tuple[dict[str, float], dict[str, float], float | None]:
            vectors = model.vectors_of(record)
            buffers = model.layout.named_buffers(vectors)
            triggered = self.triggered
            success = triggered.accuracy(vectors.params, buffers) if triggered else None
            return (
                _measured(self.validation, vectors.params, buffers),
                _measured(self.test, vectors.params, buffers),
                success,
            )

        try:
            validation, test, success = model.examined(examine)
        except Exception as error:  # out of the model or the loss: the run goes on
            if not server_round:
                raise
            reason = printable(f"the evaluation failed: {error!r}")
            logger.error("round %d: %s", server_round, reason)
            self.writer.on_evaluation(server_round, reason=reason)
            return None
        found = {"validation": validation, "test": test}
        own = [metric.key for metric in self.writer.metrics]
        self.writer.on_evaluation(
            server_round,
            _evaluation(test),
            _evaluation(validation),
            attack_success=success,
            metrics={
                f"{split}_{key}": figures[key]
                for key in own
                for split, figures in found.items()
                if key in figures
            },
            evaluation_seconds=time.perf_counter() - started,
        )
        metrics = {
            f"{split}-{key.replace('_', '-')}": figures[key]
            for split, figures in found.items()
            for key in ("accuracy", "loss", *own)
            if key in figures
        }
        return metrics if success is None else {**metrics, "attack-success": success}


def _measured(
    judge: Validation | None, params: Tensor, buffers: Mapping[str, Tensor]
) -> dict[str, float]:
    return judge.measure(params, buffers) if judge else {}


def _evaluation(measured: Mapping[str, float]) -> Evaluation | None:
    if not measured:
        return None
    return Evaluation(measured["loss"], measured.get("accuracy", math.nan))
