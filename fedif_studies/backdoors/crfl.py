"""CRFL: the whole model is shortened and gets noise in every round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Setting
from fedif_flower.stages import Stage


class CRFL(Stage):
    """Shortens the whole model to a bound and adds noise, in every round; in the last, no noise.

    Parameters
    ----------
    bound : float
        Of the Euclidean norm of the parameters, > 0.
    std : float
        Of the noise on each parameter, >= 0.
    rounds : int
        Of the run, >= 1.
    seed : int
        Of the noise.

    References
    ----------
    Xie et al., "CRFL: Certifiably Robust Federated Learning against Backdoor Attacks", ICML 2021,
    algorithm 1.
    """

    def __init__(
        self,
        bound: Annotated[float, Setting("of the norm of all parameters", gt=0)],
        std: Annotated[float, Setting("of the noise on each parameter", ge=0)],
        rounds: Annotated[int, Setting("of the run", ge=1)],
        seed: Annotated[int, Setting("of the noise", ge=0)] = 0,
    ) -> None:
        self.bound, self.std, self.rounds, self.seed = bound, std, rounds, seed
        self._made = 0

    def __repr__(self) -> str:
        """Name the stage and its settings."""
        return f"CRFL({self.bound:g}, {self.std:g})"

    def advance(self, before: Tensor, after: Tensor) -> Tensor:  # noqa: ARG002
        """Return the shortened parameters ``[d]`` with noise."""
        self._made += 1
        shortened = after * min(1.0, self.bound / float(after.norm()))
        if self._made >= self.rounds:
            return shortened
        return shortened + self.std * noise(shortened, "crfl-round", self.seed, self._made)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"made": self._made}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._made = int(state["made"])


def noise(like: Tensor, purpose: str, *ids: int) -> Tensor:
    """Return standard normal noise of a tensor's shape, on the CPU."""
    return torch.randn(like.shape, generator=torch_generator(purpose, *ids))
