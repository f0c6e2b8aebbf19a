"""Centred clipping: the mean of updates that are bounded by their distance from a centre."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from fedif_flower.round import RoundUpdates
from fedif_flower.sections import CheckedFields
from fedif_flower.settings import Setting


@dataclass
class CentredClipping(CheckedFields):
    """Move by the mean of updates that are clipped around the last round's step.

    Formula: :func:`centred_clipping`, whose centre is 0 before the first round.

    Parameters
    ----------
    radius : float, optional
        How far from the centre an update counts in full, > 0; ``None``: the median distance.
    iterations : int
        >= 1.
    """

    radius: Annotated[
        float | None,
        Setting(
            "how far from the centre an update counts in full", gt=0, auto="the median distance"
        ),
    ] = None
    iterations: Annotated[int, Setting("of clipping, each around the mean so far", ge=1)] = 3
    last_step: Tensor | None = field(default=None, init=False, repr=False)  # [d], on the CPU

    def __call__(self, updates: RoundUpdates) -> Tensor:
        """Return the clipped mean ``[d]``."""
        params = updates.global_params
        last = self.last_step
        centre = torch.zeros_like(params) if last is None else last.to(params)
        step = centred_clipping(
            updates.client_updates, centre, radius=self.radius, iterations=self.iterations
        )
        self.last_step = step.cpu()
        return step

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"last_step": self.last_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.last_step = state["last_step"]


def centred_clipping(
    updates: Tensor, centre: Tensor, *, radius: float | None = None, iterations: int = 3
) -> Tensor:
    r"""Return the centre, moved by the clipped mean of what the updates differ from it.

    .. math:: v \leftarrow v + \frac{1}{m} \sum_i (x_i - v)
              \min\left(1, \frac{\tau}{\lVert x_i - v \rVert}\right)

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``: :math:`x_i`, m >= 1, finite.
    centre : Tensor
        ``[d]``: v at the start, such as the last round's step.
    radius : float, optional
        :math:`\tau` > 0. ``None``: the median of the distances from the centre, in each iteration.
    iterations : int
        >= 1.

    Returns
    -------
    Tensor
        ``[d]``.

    References
    ----------
    Karimireddy et al., 2021 (Learning from history), equation 2. The paper gives
    :math:`\tau` a fixed value; a median needs no knowledge of the model's scale.
    """
    for _ in range(iterations):
        away = updates - centre  # [m, d]
        distances = away.double().norm(dim=1)  # [m]
        bound = distances.median() if radius is None else torch.as_tensor(radius)
        factors = torch.where(distances > bound, bound / distances, 1.0)
        centre = centre + (factors.to(away) @ away) / len(updates)
    return centre
