"""For which share of wrong labels a run corrects its held-out loss, and how records say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import HELD_OUT_KEY
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.valuation import Validation
from fedif_flower.valuation.held_out import HeldOut
from fedif_flower.valuation.held_out_check import HeldOutCheck
from fedif_flower.valuation.label_noise import is_noise

# Keys in the record of an examination.
NOISE = "corrected_noise"  # The share of wrong labels for which the loss is corrected.
BY_CLASS = "corrected_by_class"  # Whether the correction is by each class's chances.


@dataclass(frozen=True)
class Correction:
    """For which wrong labels a held-out loss is corrected.

    Attributes
    ----------
    noise : float or Tensor
        The share of wrong labels, or the chances ``[C, C]`` by which labels of each class become
        others; 0: no correction.
    interval : tuple of float, optional
        The interval in which the true share lies; ``None``: it is not known.
    """

    noise: float | Tensor = 0.0
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, check: HeldOutCheck, held_out: HeldOut | None) -> Correction:
        """Return the correction that settings ask for, given what an examination found.

        Raises
        ------
        ConfigError
            If the settings ask for chances by class, and there is no estimate of them.
        """
        try:
            noise = check.noise_of(held_out)
        except ConfigError as error:
            raise ConfigError(f"validation.{error}") from error
        interval = None
        if held_out is not None:
            interval = _interval(held_out.low, held_out.high)
        return cls(noise, interval)

    @classmethod
    def of_loss(cls, validation: Validation) -> Correction:
        """Return the correction that a task's own loss makes already: for a share of 0, mostly.

        Where the loss is corrected by chances of each class, it is the share of wrong labels that
        these chances make if all classes are equally frequent.
        """
        noise = validation.noise
        if isinstance(noise, Tensor):
            noise = 1 - float(noise.diagonal().mean())
        return cls(noise)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Correction:
        """Return the correction in a record; an empty record has none."""
        noise: float | Tensor = float(record.get(NOISE, 0.0))
        if record.get(BY_CLASS):
            noise = torch.tensor(record["transitions"], dtype=torch.float64)
        return cls(noise, _interval(record.get("low"), record.get("high")))

    def to_record(self, held_out: HeldOut | None) -> dict[str, Any]:
        """Return the record of this correction, and of the examination that led to it."""
        record: dict[str, Any] = {}
        if held_out is not None:
            record = held_out.to_record()
        if isinstance(self.noise, Tensor):
            # The examination's record holds the chances themselves.
            record |= {NOISE: record["by_class"], BY_CLASS: True}
        else:
            record[NOISE] = self.noise
        return record

    def apply(self, loaded: LoadedTask) -> LoadedTask:
        """Return a task whose held-out loss is corrected for wrong labels.

        The task itself is returned if there is nothing to correct, if its loss cannot be corrected,
        or if its own loss is corrected already.

        Raises
        ------
        ConfigError
            If the share of wrong labels is so large, for so few classes, that labels would say
            nothing.
        """
        if is_noise(loaded.validation.noise):
            return loaded
        try:
            validation = loaded.validation.with_noise(self.noise, self.interval)
        except ConfigError as error:
            raise ConfigError(f"validation.{error}") from error
        if validation is loaded.validation:
            return loaded
        return replace(loaded, validation=validation)


def corrected_task(
    loaded: LoadedTask, correction: Correction, held_out: HeldOut | None
) -> tuple[LoadedTask, dict[str, Any]]:
    """Return a task whose held-out loss is corrected, and the record of the correction.

    Where the loss stays as it is, the record has the correction that the task's own loss makes: for
    a share of 0, mostly.
    """
    corrected = correction.apply(loaded)
    if corrected is loaded:
        correction = Correction.of_loss(loaded.validation)
    return corrected, correction.to_record(held_out)


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    """Return the interval of the share of wrong labels; ``None`` unless it is wider than 0."""
    if low is None or high is None or not low < high:
        return None
    return low, high


def recorded_examination(record: Mapping[str, Any]) -> HeldOut | None:
    """Return the examination in a record; ``None``: the held-out set was not examined."""
    examination = {key: value for key, value in record.items() if key not in (NOISE, BY_CLASS)}
    if not examination:
        return None
    return HeldOut.from_record({"suspects": (), **examination})


def corrected_words(record: Mapping[str, Any]) -> str:
    """Return in words for what the loss is corrected, according to a record."""
    words = f"{100 * record[NOISE]:.3g} % of wrong labels"
    if record.get(BY_CLASS):
        return f"{words}, by class"
    return words


def with_recorded_noise(
    loaded: LoadedTask, provenance: Mapping[str, Any], key: str = HELD_OUT_KEY
) -> LoadedTask:
    """Return a task whose held-out loss is corrected as a run's provenance says, under ``key``."""
    return Correction.of_record(provenance.get(key, {})).apply(loaded)
