"""For which wrong labels a run corrects its held-out loss, as its records have it."""

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

# In the record of an examination:
NOISE = "corrected_noise"  # for which share of wrong labels the loss is corrected,
BY_CLASS = "corrected_by_class"  # and whether that is by the chances of each class.


@dataclass(frozen=True)
class Correction:
    """For which wrong labels a held-out loss is corrected.

    Attributes
    ----------
    noise : float or Tensor
        Their share, or the chances ``[C, C]`` by which labels become others; 0: for none.
    interval : tuple of float, optional
        Between which shares the true one lies; ``None``: that is not known.
    """

    noise: float | Tensor = 0.0
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, check: HeldOutCheck, held_out: HeldOut | None) -> Correction:
        """Return the correction that settings ask for, by what an examination found.

        Raises
        ------
        ConfigError
            If chances by class are wanted, and there is no estimate of them.
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
        """Return for which share a held-out loss is corrected as it is; 0, mostly.

        Of chances by class it is the share where each class is as frequent.
        """
        noise = validation.noise
        if isinstance(noise, Tensor):
            noise = 1 - float(noise.diagonal().mean())
        return cls(noise)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Correction:
        """Return the correction that a record tells of; none where it is empty."""
        noise: float | Tensor = float(record.get(NOISE, 0.0))
        if record.get(BY_CLASS):
            noise = torch.tensor(record["transitions"], dtype=torch.float64)
        return cls(noise, _interval(record.get("low"), record.get("high")))

    def to_record(self, held_out: HeldOut | None) -> dict[str, Any]:
        """Return what records have of an examination, and of what the loss is corrected for."""
        record: dict[str, Any] = {}
        if held_out is not None:
            record = held_out.to_record()
        if isinstance(self.noise, Tensor):
            # The chances are the examination's.
            record |= {NOISE: record["by_class"], BY_CLASS: True}
        else:
            record[NOISE] = self.noise
        return record

    def apply(self, loaded: LoadedTask) -> LoadedTask:
        """Return a task whose held-out loss allows for wrong labels.

        The task itself is returned where there is nothing to correct, where the loss is none that
        can be corrected, and where the task's own loss allows for wrong labels already.

        Raises
        ------
        ConfigError
            If labels of so few classes would say nothing then.
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
    """Return a task whose held-out loss is corrected, and what records have of that.

    Where the loss stays as it is, they say for which share the task's own allows: 0, mostly.
    """
    corrected = correction.apply(loaded)
    if corrected is loaded:
        correction = Correction.of_loss(loaded.validation)
    return corrected, correction.to_record(held_out)


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    """Return between which shares of wrong labels the true one lies, if there is such a doubt."""
    if low is None or high is None or not low < high:
        return None
    return low, high


def recorded_examination(record: Mapping[str, Any]) -> HeldOut | None:
    """Return what was found, by a record; ``None``: the set was not examined."""
    examination = {key: value for key, value in record.items() if key not in (NOISE, BY_CLASS)}
    if not examination:
        return None
    return HeldOut.from_record({"suspects": (), **examination})


def corrected_words(record: Mapping[str, Any]) -> str:
    """Say for what the loss is corrected, by a record."""
    share = f"{100 * record[NOISE]:.3g} % of wrong labels"
    if record.get(BY_CLASS):
        return f"{share}, by class"
    return share


def with_recorded_noise(
    loaded: LoadedTask, provenance: Mapping[str, Any], key: str = HELD_OUT_KEY
) -> LoadedTask:
    """Return a task with the held-out loss that a run's provenance tells of, under a key."""
    return Correction.of_record(provenance.get(key, {})).apply(loaded)
