"""What is done about wrong labels in the held-out set, given what an examination found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ConfigError
from fedif_flower.settings import Setting
from fedif_flower.valuation.class_noise import LEAST_OF_CLASS, MOST_CLASSES
from fedif_flower.valuation.held_out import HeldOut

Noise = Annotated[float, Field(ge=0, le=0.9)] | Literal["auto", "by-class", "off"]


@dataclass(frozen=True)
class HeldOutCheck(CheckedFields):
    """What is done about wrong labels in the held-out set.

    Parameters
    ----------
    noise : float or {"auto", "by-class", "off"}
        The share of wrong labels for which the loss is corrected, in [0, 0.9]. ``"auto"``: the
        estimated share, if three quarters of the bootstrap's draws lie above 0. ``"by-class"``: the
        estimated chances with which labels of each class became those of others. ``"off"``: no
        correction.
    vet : bool
        Whether the set is examined before the first round.
    seconds : float
        How long the estimate may take, > 0.
    """

    noise: Annotated[
        Noise,
        Setting(
            "for which share of wrong labels the held-out loss is corrected; `auto`: the share "
            "that the set itself tells before the first round, where three quarters of the "
            "bootstrap's draws lie above 0; `by-class`: by the chances with which labels of each "
            "class seem to have become others; `off`: none (`docs/methods/held-out.md`)",
            allowed="a number >= 0 and <= 0.9, 'auto', 'by-class' or 'off'",
        ),
    ] = "auto"
    vet: Annotated[
        bool,
        Setting(
            "examine the held-out set before the first round: the share of wrong labels, classes "
            "without examples, repeated inputs"
        ),
    ] = True
    seconds: Annotated[
        float,
        Setting("seconds that the share of wrong labels may take to estimate", gt=0),
    ] = 60.0

    def noise_of(self, found: HeldOut | None) -> float | Tensor:
        """Return the noise for which the loss is corrected, given what an examination found.

        Parameters
        ----------
        found : HeldOut, optional
            The examination; ``None``: there was none.

        Returns
        -------
        float or Tensor
            A share of wrong labels, or chances ``[C, C]``.

        Raises
        ------
        ConfigError
            If ``noise`` is "by-class", and there is no estimate by class.
        """
        if self.noise == "off":
            return 0.0
        if self.noise == "by-class":
            return _chances_of(found)
        if self.noise != "auto":
            return float(self.noise)
        return 0.0 if found is None else found.correction


def _chances_of(found: HeldOut | None) -> Tensor:
    """Return the chances ``[C, C]`` that an examination found, or raise ConfigError."""
    if found is None:
        raise ConfigError("noise = 'by-class' needs an examination: vet = true")
    if not found.transitions:
        why = found.why_none
        if not why:
            why = (
                f"each class that has labels needs {LEAST_OF_CLASS}, there may be {MOST_CLASSES} "
                "classes at most, and the model has to be trained once more in the time left"
            )
        raise ConfigError(f"noise = 'by-class', but there is no estimate by class: {why}")
    return torch.tensor(found.transitions, dtype=torch.float64)
