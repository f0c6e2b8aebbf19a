"""Centred clipping: the mean of updates, each clipped to a bounded distance from a centre."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from fedif_flower.constructors import CheckedFields
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import Setting


@dataclass
class CentredClipping(CheckedFields):
    r"""Move the model by the mean of updates that are clipped around the last round's step.

    .. math:: v \leftarrow v + \frac{1}{m} \sum_i (x_i - v)
              \min\left(1, \frac{\tau}{\lVert x_i - v \rVert}\right)

    with :math:`x_i` the updates of the m clients. v starts at the step that this rule returned last
    (0 if there was none), is replaced as often as ``iterations`` says, and is then the round's
    step. A step does not count as the last one if its model was taken back.

    Parameters
    ----------
    radius : float, optional
        :math:`\tau` > 0: an update counts in full within this distance from the centre v.
        ``None``: the median of the updates' distances, found anew in each iteration (of an even
        number, the lower one of the middle two).
    iterations : int
        How often a round replaces v, >= 1.

    References
    ----------
    Karimireddy et al., 2021 (Learning from history), equation 2. The paper gives
    :math:`\tau` a fixed value; a median needs no knowledge of the model's scale.
    """

    radius: Annotated[
        float | None,
        Setting(
            "how far from the centre an update counts in full", gt=0, auto="the median distance"
        ),
    ] = None
    iterations: Annotated[int, Setting("of clipping, each around the mean so far", ge=1)] = 3
    last_step: Tensor | None = field(default=None, init=False, repr=False)  # [d], on the CPU
    _step_before: Tensor | None = field(default=None, init=False, repr=False)  # [d]

    def __call__(self, updates: RoundUpdates) -> Tensor:
        """Return the clipped mean ``[d]``, and remember it for the next round."""
        client_updates = updates.client_updates  # [m, d]
        centre = torch.zeros_like(updates.global_params)
        if self.last_step is not None:
            centre = self.last_step.to(client_updates)
        for _ in range(self.iterations):
            away = client_updates - centre  # [m, d]
            distances = away.double().norm(dim=1)  # [m]
            bound = self._bound(distances)
            factors = torch.where(distances > bound, bound / distances, 1.0)
            centre = centre + (factors.to(away) @ away) / len(client_updates)
        # A step of 0 leaves the model as it is: what may be taken back is still the step before.
        if bool(centre.any()):
            self._step_before = self.last_step
        self.last_step = centre.cpu()
        return centre

    def take_back(self) -> None:
        """Forget the last step, because the model that it led to was taken back."""
        self.last_step = self._step_before

    def _bound(self, distances: Tensor) -> Tensor:
        """Return tau, the distance within which an update counts in full."""
        if self.radius is None:
            return distances.median()
        return torch.as_tensor(self.radius)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs to go on."""
        return {"last_step": self.last_step, "step_before": self._step_before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.last_step = state["last_step"]
        # Checkpoints of earlier versions have no "step_before".
        self._step_before = state.get("step_before")
