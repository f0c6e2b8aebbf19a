"""A run's held-out set, examined before anybody is asked, and the loss corrected for what is found.

The share of wrong labels is fixed before the first round: it is in ``provenance.json`` and in
checkpoints, and a run that goes on, or is replayed, has the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import ValidationSettings
from fedif_flower.run.folder import HELD_OUT_KEY, RunFolder
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.run.part import Built, Kept, RunContext, RunPart
from fedif_flower.server.model import GlobalModel
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.valuation import Validation
from fedif_flower.valuation.held_out import HeldOut, contradicted_share, vet

NOISE = "corrected_noise"  # There: for which share of wrong labels the loss is corrected.
COLUMN = "validation-contradicted"
logger = logging.getLogger(__name__)


class ExaminedHeldOut(RunPart):
    """``validation.vet`` and ``validation.noise``: the held-out set has to earn its place."""

    settings = ValidationSettings

    def build(self, run: RunContext) -> Built:
        """Return the task with the corrected loss, and what says so in the records."""
        config = run.config
        held_out, noise = self._examined(run)
        interval = None
        if held_out is not None:
            interval = interval_of(held_out.low, held_out.high)
        loaded = with_noise(run.loaded, noise, interval)
        is_corrected = loaded is not run.loaded
        record: dict[str, Any] = {NOISE: noise if is_corrected else 0.0}
        remarks = []
        if held_out is not None:
            record |= held_out.to_record()
            remarks.append(f"held-out set: {held_out.words()}")
        if is_corrected:
            remarks.append(f"the held-out loss is corrected for {100 * noise:g} % of wrong labels")
        for remark in remarks:
            logger.log(logging.WARNING if is_corrected else logging.INFO, "%s", remark)
        if "accuracy" not in loaded.validation.metrics:
            remarks = []  # The log has said it: a report on no classes need not.
        witness = Witness(run.loaded.validation, run.folder, held_out, config.eval_every)
        # Suspects have a table of their own.
        without_suspects = {key: value for key, value in record.items() if key != "suspects"}
        return Built(
            callbacks=[witness],
            kept={HELD_OUT_KEY: KeptHeldOut(record)},
            provenance={HELD_OUT_KEY: without_suspects},
            remarks=remarks,
            loaded=loaded,
        )

    def _examined(self, run: RunContext) -> tuple[HeldOut | None, float]:
        """Return the examination, and for which share of wrong labels the loss is corrected."""
        if run.checkpoint is not None:
            record = run.checkpoint.records.get(HELD_OUT_KEY) or {NOISE: 0.0}
            noise = float(record[NOISE])
            rest = {key: value for key, value in record.items() if key != NOISE}
            held_out = HeldOut.from_record(rest) if rest else None
            return held_out, noise
        check = run.config.section(ValidationSettings).check()
        held_out = examine(run.loaded, check.seconds) if check.vet else None
        return held_out, check.share_of(held_out)


def examine(loaded: LoadedTask, seconds: float) -> HeldOut:
    """Examine a task's validation split; the model is the task's own, untrained."""
    return vet(
        loaded.validation,
        test=loaded.test,
        build=loaded.task.build_model,
        seed=loaded.config.seed,
        seconds=seconds,
    )


def interval_of(low: float | None, high: float | None) -> tuple[float, float] | None:
    """Return between which shares of wrong labels the true one lies, if there is such a doubt."""
    if low is None or high is None or not low < high:
        return None
    return low, high


def with_noise(
    loaded: LoadedTask, noise: float, interval: tuple[float, float] | None = None
) -> LoadedTask:
    """Return a task whose held-out loss allows for a share of wrong labels; 0: the task itself.

    ``interval`` is where the true share lies, see
    :meth:`~fedif_flower.valuation.validation.Validation.with_noise`.

    Raises
    ------
    ConfigError
        If labels of so few classes would say nothing then.
    """
    try:
        validation = loaded.validation.with_noise(noise, interval)
    except ConfigError as error:
        raise ConfigError(f"validation.{error}") from error
    return loaded if validation is loaded.validation else replace(loaded, validation=validation)


def with_recorded_noise(loaded: LoadedTask, provenance: Mapping[str, Any]) -> LoadedTask:
    """Return a task with the held-out loss that a run's provenance tells of."""
    record = provenance.get(HELD_OUT_KEY, {})
    interval = interval_of(record.get("low"), record.get("high"))
    return with_noise(loaded, float(record.get(NOISE, 0.0)), interval)


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
    """

    def __init__(
        self, validation: Validation, folder: RunFolder, held_out: HeldOut | None, every: int
    ) -> None:
        self._validation = validation
        self._folder = folder
        self._held_out = held_out
        self._every = every

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Write the suspects, if there are any."""
        if self._held_out is not None and self._held_out.suspects:
            self._folder.held_out.begin()
            self._folder.held_out.append([vars(suspect) for suspect in self._held_out.suspects])

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float]:
        """Return the share that a round's model contradicts."""
        if server_round % self._every or "accuracy" not in self._validation.metrics:
            return {}
        try:
            vectors = model.vectors
            share = contradicted_share(self._validation, vectors.params, model.named_buffers)
        except Exception:  # Out of the user's model: the evaluation says what is wrong with it.
            return {}
        return {} if share is None else {COLUMN: share}
