"""The server's evaluation of each new model, on its validation and its test split."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from flwr.app import ArrayRecord

from fedif_flower.messages.text import printable
from fedif_flower.run.recorder import RunRecorder
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.valuation import Evaluation, Validation

logger = logging.getLogger(__name__)


class ServerEvaluation(Callback):
    """Evaluates the model every so many rounds, and after the last, into a run's records.

    A model that cannot be evaluated, where the one before it can, is taken back.

    Parameters
    ----------
    validation, test : Validation
        The two splits.
    recorder : RunRecorder
        Its run says how often, and how many rounds there are.
    triggered : Validation, optional
        Test examples with a backdoor's trigger, labelled with its target.
    """

    def __init__(
        self,
        validation: Validation,
        test: Validation,
        recorder: RunRecorder,
        triggered: Validation | None = None,
    ) -> None:
        self.validation = validation
        self.test = test
        self.recorder = recorder
        self.triggered = triggered

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float] | None:
        """Write the round's line, with accuracies where it is due, and return them."""
        config = self.recorder.config
        if server_round % config.eval_every and server_round != config.num_server_rounds:
            self.recorder.on_evaluation(server_round)
            return None
        started = time.perf_counter()

        def examine(record: ArrayRecord) -> tuple[Evaluation, Evaluation, float | None]:
            vectors = model.vectors_of(record)
            buffers = model.layout.named_buffers(vectors)
            triggered = self.triggered
            success = triggered.accuracy(vectors.params, buffers) if triggered else None
            return (
                self.validation.evaluate(vectors.params, buffers),
                self.test.evaluate(vectors.params, buffers),
                success,
            )

        try:
            validation, test, success = model.examined(examine)
        except Exception as error:  # out of the model or the loss: the run goes on
            if not server_round:
                raise
            reason = printable(f"the evaluation failed: {error!r}")
            logger.error("round %d: %s", server_round, reason)
            self.recorder.on_evaluation(server_round, reason=reason)
            return None
        self.recorder.on_evaluation(
            server_round,
            test,
            validation,
            attack_success=success,
            evaluation_seconds=time.perf_counter() - started,
        )
        metrics = {"test-accuracy": test.accuracy, "validation-accuracy": validation.accuracy}
        return metrics if success is None else {**metrics, "attack-success": success}
