"""A run's held-out set is examined before round 1, and its loss corrected for wrong labels.

The share of wrong labels is fixed before the first round and written to ``provenance.json`` and
checkpoints, so that a run that is resumed or replayed has the same share.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fedif_flower.messages.held_out_classes import HeldOutClasses
from fedif_flower.run.correction import (
    Correction,
    corrected_task,
    corrected_words,
    recorded_examination,
)
from fedif_flower.run.folder import HELD_OUT_KEY, RunFolder
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.run.own_sections import ValidationSettings
from fedif_flower.run.part import Built, PartState, RunContext, RunPart
from fedif_flower.server.model import GlobalModel
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.valuation import Validation
from fedif_flower.valuation.examination import contradicted_share, vet
from fedif_flower.valuation.fit_grid import Way
from fedif_flower.valuation.held_out import HeldOut
from fedif_flower.valuation.label_noise import is_noise

WITNESS = "validation_contradicted"  # In rounds.csv: the share of labels that a model contradicts.
# The largest share of labels that the last model may contradict, beyond the share that the loss is
# corrected for. It is generous: a model is overconfident on hard data, and attackers who poison the
# model move the share.
MOST_CONTRADICTED = 0.25
logger = logging.getLogger(__name__)


class ExaminedHeldOut(RunPart):
    """``validation.vet`` and ``validation.noise``: examine the held-out set, correct its loss."""

    settings = ValidationSettings

    def build(self, run: RunContext) -> Built:
        """Return the task with the corrected loss, and what the records say about it."""
        config = run.config
        held_out, correction = self._examine(run)
        loaded, record = corrected_task(run.loaded, correction, held_out)
        is_corrected = loaded is not run.loaded
        remarks = []
        if held_out is not None:
            remarks.append(f"held-out set: {held_out.words(run.folder.held_out.path.name)}")
        if is_corrected:
            remarks.append(f"the held-out loss is corrected for {corrected_words(record)}")
        elif is_noise(loaded.validation.noise):
            remarks.append(
                "the task's own loss is corrected for wrong labels already: no other correction is "
                "made"
            )
        elif held_out is None and config.section(ValidationSettings).noise == "auto":
            remarks.append(
                "the held-out set is not examined (validation.vet = false): its labels are taken "
                "as they are"
            )
        level = logging.INFO
        if is_corrected:
            level = logging.WARNING
        for remark in remarks:
            logger.log(level, "%s", remark)
        if "accuracy" not in loaded.validation.metrics:
            remarks = []  # The task has no classes: that the remarks are in the log is enough.
        contradicted = ContradictedLabels(
            run.loaded.validation,
            run.folder,
            held_out,
            every=config.eval_every,
            last_round=config.num_server_rounds,
        )
        # The suspects are in a table of their own, held_out.csv.
        without_suspects = {key: value for key, value in record.items() if key != "suspects"}
        return Built(
            callbacks=[contradicted],
            state={HELD_OUT_KEY: HeldOutState(record)},
            provenance={HELD_OUT_KEY: without_suspects},
            remarks=remarks,
            loaded=loaded,
            instructions=classes_of(held_out).to_config(),
        )

    def _examine(self, run: RunContext) -> tuple[HeldOut | None, Correction]:
        """Return the examination and the correction; a resumed run has those of its checkpoint."""
        if run.checkpoint is not None:
            record = run.checkpoint.records.get(HELD_OUT_KEY, {})
            return recorded_examination(record), Correction.of_record(record)
        check = run.config.section(ValidationSettings).check()
        held_out = None
        if check.vet:
            held_out = examine(run.loaded, check.seconds)
        return held_out, Correction.of(check, held_out)


def examine(
    loaded: LoadedTask, seconds: float, way: Way | None = None, *, is_in_test: bool = False
) -> HeldOut:
    """Examine a task's validation split, by models of the task that are trained on parts of it.

    Parameters
    ----------
    loaded : LoadedTask
        The task with its data.
    seconds : float
        How long the estimate of wrong labels may take.
    way : Way, optional
        As :func:`~fedif_flower.valuation.examination.vet` takes it.
    is_in_test : bool
        Whether the validation split is a part of the test split: no copies of its examples are
        looked for there then.
    """
    test: Validation | None = loaded.test
    if is_in_test:
        test = None
    return vet(
        loaded.validation,
        test=test,
        build=loaded.task.build_model,
        seed=loaded.config.seed,
        seconds=seconds,
        way=way,
    )


def classes_of(held_out: HeldOut | None) -> HeldOutClasses:
    """Return the classes with no or few held-out examples, by an examination; else no classes."""
    if held_out is None:
        return HeldOutClasses()
    return HeldOutClasses.of(held_out.missing, held_out.rare)


def last_contradicted(lines: Sequence[Mapping[str, Any]], column: str) -> float | None:
    """Return the share of labels that a run's last measured model contradicts; ``None``: unknown.

    Parameters
    ----------
    lines : sequence of mapping
        The lines of ``rounds.csv``, in the order of the rounds.
    column : str
        The column for the data, see :func:`~fedif_flower.run.secret_validation.witness_of`.
    """
    for line in reversed(lines):
        contradicted = line.get(column)
        if contradicted is not None:
            return float(contradicted)
    return None


class HeldOutState(PartState):
    """The record of the examination and the correction in checkpoints."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = dict(record)

    def memory(self, last_round: int) -> dict[str, Any]:  # noqa: ARG002
        """Return the record, which does not change after the first round."""
        return self._record

    def restore(
        self, lines: Sequence[Mapping[str, Any]], memory: Mapping[str, Any] | None, last_round: int
    ) -> None:
        """Do nothing: the record was read from the checkpoint before the strategy was made."""


class ContradictedLabels(Callback):
    """Measures in each round the share of held-out labels that the global model contradicts.

    A model contradicts a label if it gives another class a probability above 0.9. The run decides
    nothing by the share, since attackers who poison the model can move it.

    Parameters
    ----------
    validation : Validation
        The held-out set.
    folder : RunFolder
        The run's folder, where the suspects that an examination found are written.
    held_out : HeldOut, optional
        What the examination found.
    every : int
        Rounds from one measurement to the next, >= 1.
    last_round : int
        The run's last round, whose model is measured in any case.
    column : str
        The name of the share in ``rounds.csv``.
    """

    def __init__(
        self,
        validation: Validation,
        folder: RunFolder,
        held_out: HeldOut | None,
        *,
        every: int,
        last_round: int,
        column: str = WITNESS,
    ) -> None:
        self._column = column
        self._validation = validation
        self._folder = folder
        self._held_out = held_out
        self._every = every
        self._last_round = last_round

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Write the examples whose labels look wrong, if there are any."""
        if self._held_out is not None and self._held_out.suspects:
            self._folder.held_out.begin()
            self._folder.held_out.append([vars(suspect) for suspect in self._held_out.suspects])

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float]:
        """Return the share of labels that a round's model contradicts, by column, if it is due."""
        is_due = server_round % self._every == 0 or server_round == self._last_round
        if not is_due or "accuracy" not in self._validation.metrics:
            return {}
        try:
            vectors = model.vectors
            contradicted = contradicted_share(self._validation, vectors.params, model.named_buffers)
        except Exception:  # The user's model may raise anything. The evaluation logs such an error.
            return {}
        if contradicted is None:
            return {}
        return {self._column: contradicted}
