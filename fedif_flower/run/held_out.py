"""A run's held-out set, examined before anybody is asked, and the loss corrected for what is found.

The share of wrong labels is fixed before the first round: it is in ``provenance.json`` and in
checkpoints, and a run that goes on, or is replayed, has the same.
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
from fedif_flower.run.part import Built, Kept, RunContext, RunPart
from fedif_flower.server.model import GlobalModel
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.valuation import Validation
from fedif_flower.valuation.examination import contradicted_share, vet
from fedif_flower.valuation.fit_grid import Way
from fedif_flower.valuation.held_out import HeldOut
from fedif_flower.valuation.label_noise import is_noise

WITNESS = "validation_contradicted"  # In rounds.csv: how many labels a model contradicts.
# Of the last model, beyond what the loss is corrected for. A model is overconfident on hard data,
# and whoever poisons it moves this: so it takes more than an estimate from the set alone.
MOST_CONTRADICTED = 0.25
logger = logging.getLogger(__name__)


class ExaminedHeldOut(RunPart):
    """``validation.vet`` and ``validation.noise``: the held-out set has to earn its place."""

    settings = ValidationSettings

    def build(self, run: RunContext) -> Built:
        """Return the task with the corrected loss, and what says so in the records."""
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
            remarks.append("the task's own loss allows for wrong held-out labels, and stays so")
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
            remarks = []  # The log has said it: a report on no classes need not.
        witness = Witness(
            run.loaded.validation,
            run.folder,
            held_out,
            every=config.eval_every,
            last_round=config.num_server_rounds,
        )
        # Suspects have a table of their own.
        without_suspects = {key: value for key, value in record.items() if key != "suspects"}
        return Built(
            callbacks=[witness],
            kept={HELD_OUT_KEY: KeptHeldOut(record)},
            provenance={HELD_OUT_KEY: without_suspects},
            remarks=remarks,
            loaded=loaded,
            told=classes_of(held_out).to_config(),
        )

    def _examine(self, run: RunContext) -> tuple[HeldOut | None, Correction]:
        """Return the examination, and for which wrong labels the loss is corrected."""
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
    """Examine a task's validation split; the model is the task's own, untrained.

    ``way``: see :func:`~fedif_flower.valuation.examination.vet`. ``is_in_test``: it is part of the
    test split, in which no copies are looked for then.
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
    """Return the classes that a set which was examined can hardly value."""
    if held_out is None:
        return HeldOutClasses()
    return HeldOutClasses.of(held_out.missing, held_out.rare)


def last_contradicted(lines: Sequence[Mapping[str, Any]], column: str) -> float | None:
    """Return the share of labels that the last model that was asked contradicts.

    Parameters
    ----------
    lines : sequence of mapping
        Of ``rounds.csv``, in the order of the rounds.
    column : str
        Of the data, see :func:`~fedif_flower.run.secret_validation.witness_of`.
    """
    for line in reversed(lines):
        share = line.get(column)
        if share is not None:
            return float(share)
    return None


class KeptHeldOut(Kept):
    """Has what was found in checkpoints."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = dict(record)

    def memory(self, last_round: int) -> dict[str, Any]:  # noqa: ARG002
        """Return what was found before the first round."""
        return self._record

    def restore(
        self, lines: Sequence[Mapping[str, Any]], memory: Mapping[str, Any] | None, last_round: int
    ) -> None:
        """Do nothing: it was read before the strategy was made."""


class Witness(Callback):
    """Tells by round how many held-out labels the global model is sure are others.

    It decides nothing: whoever poisons the model moves it.

    Parameters
    ----------
    validation : Validation
        The held-out set.
    folder : RunFolder
        The run's; the suspects of an examination are written there.
    held_out : HeldOut, optional
        What the examination found.
    every : int
        Rounds from one look to the next, >= 1.
    last_round : int
        The run's: its model is looked at in any case.
    column : str
        Under which name it tells the share.
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
        """Write the suspects, if there are any."""
        if self._held_out is not None and self._held_out.suspects:
            self._folder.held_out.begin()
            self._folder.held_out.append([vars(suspect) for suspect in self._held_out.suspects])

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float]:
        """Return the share that a round's model contradicts."""
        is_due = server_round % self._every == 0 or server_round == self._last_round
        if not is_due or "accuracy" not in self._validation.metrics:
            return {}
        try:
            vectors = model.vectors
            share = contradicted_share(self._validation, vectors.params, model.named_buffers)
        except Exception:  # Out of the user's model: the evaluation says what is wrong with it.
            return {}
        if share is None:
            return {}
        return {self._column: share}
