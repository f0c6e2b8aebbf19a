"""Scores that cannot be farmed: options beside the paper's normalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import usual_length
from fedif_flower.errors import ValuationError
from fedif_flower.settings import Setting


class ScoreGuard:
    r"""Takes from scores and weights what a client gains without work, or after harm.

    **Anchored scores.** Min-max gives somebody 1 and somebody 0 however little there was to gain,
    and an update of nothing stands high among harmful ones. Anchored, nothing earns nothing:

    .. math:: \Psi_i = \max(\Phi_i, 0) / \max_j \Phi_j

    Where no :math:`\Phi_j` is positive, all are 0.

    **Least length.** A direction alone is cheap. With :math:`\lambda > 0`, a short update counts
    less:

    .. math:: \Psi_i \leftarrow \Psi_i \min\left(1,
              \frac{\lVert u_i \rVert}{\lambda \operatorname{median}_j \lVert u_j \rVert}\right)

    the median being that of the round's updates that are not 0.

    **Harm memory.** A smoothed score forgets: a few good rounds redeem many harmful ones. With a
    memory of R, :math:`h_i` counts the harmful rounds (:math:`\Phi_i < 0`) among the last R that
    client i took part in, and its weight is multiplied by

    .. math:: \max(0, 1 - 2 h_i / R).

    Whoever did harm in half of them has no weight, and takes R/2 good rounds to come back to half.
    Weights then sum to 1 again; where nobody has one, the model stays as it is.

    Parameters
    ----------
    anchored : bool
        In place of the round's own normalisation.
    least_length : float
        :math:`\lambda` >= 0; 0: length does not count.
    harm_memory : int
        R >= 0, in rounds of a client's own; 0: nothing is remembered.

    Raises
    ------
    ValuationError
        If a number is out of range.
    """

    def __init__(
        self,
        *,
        anchored: Annotated[
            bool,
            Setting(
                "max(Phi, 0) / max Phi in place of min-max: an update of nothing earns nothing"
            ),
        ] = False,
        least_length: Annotated[
            float,
            Setting(
                "an update shorter than so many times the round's median counts less, as much as "
                "it is shorter; 0: length does not count",
                ge=0,
            ),
        ] = 0.0,
        harm_memory: Annotated[
            int,
            Setting(
                "of so many rounds of a member's own the harmful ones (Phi < 0) are remembered; "
                "with half of them it has no weight; 0: nothing is remembered",
                ge=0,
            ),
        ] = 0,
    ) -> None:
        if not (math.isfinite(least_length) and least_length >= 0):
            raise ValuationError(f"least_length is {least_length}; allowed: finite, >= 0")
        if harm_memory < 0:
            raise ValuationError(f"harm_memory is {harm_memory}; allowed: >= 0")
        self.anchored = anchored
        self.least_length = least_length
        self.harm_memory = harm_memory
        self._harmful: dict[int, list[bool]] = {}  # By client: of its last rounds.

    def __bool__(self) -> bool:
        """Tell whether any option is on."""
        return self.anchored or self.least_length > 0 or self.harm_memory > 0

    def normalized(
        self,
        scores: Tensor,
        normalized: Tensor,
        squared_norms: Tensor,
        *,
        resolution: float = 0.0,
    ) -> Tensor:
        r"""Return the guarded :math:`\Psi` ``[m]``.

        Parameters
        ----------
        scores, normalized : Tensor
            ``[m]``: :math:`\Phi`, and what the round's own normalisation makes of it.
        squared_norms : Tensor
            ``[m]``: :math:`\lVert u_i \rVert^2`.
        resolution : float
            As in :func:`anchored_scores`.
        """
        if self.anchored:
            normalized = anchored_scores(scores, resolution)
        if not self.least_length:
            return normalized
        norms = squared_norms.double().sqrt().cpu()  # [m]
        factors = (norms / (self.least_length * usual_length(norms))).clamp_max(1)
        return normalized * factors.to(normalized)

    def weights(
        self,
        weights: Tensor,
        client_ids: Sequence[int],
        scores: Tensor,
        *,
        resolution: float = 0.0,
    ) -> Tensor:
        r"""Remember who did harm, and return the guarded weights ``[m]`` with the same sum.

        Parameters
        ----------
        weights : Tensor
            ``[m]``, >= 0.
        client_ids : sequence of int
            The m participants, distinct.
        scores : Tensor
            ``[m]``: :math:`\Phi`.
        resolution : float
            What is less than this below 0 is no harm: it may be rounding.
        """
        if not self.harm_memory:
            return weights
        for client_id, score in zip(client_ids, scores.tolist(), strict=True):
            own = [*self._harmful.get(client_id, []), score < -resolution]
            self._harmful[client_id] = own[-self.harm_memory :]
        harm = torch.tensor([sum(self._harmful[i]) for i in client_ids], dtype=weights.dtype)
        guarded = weights * (1 - 2 * harm / self.harm_memory).clamp_min(0)
        total = guarded.sum()
        return guarded * (weights.sum() / total) if bool(total > 0) else guarded

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"harmful": {i: [int(harm) for harm in own] for i, own in self._harmful.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._harmful = {i: [bool(harm) for harm in own] for i, own in state["harmful"].items()}


def anchored_scores(scores: Tensor, resolution: float = 0.0) -> Tensor:
    r"""Return :math:`\max(\Phi_i, 0) / \max_j \Phi_j`, ``[m]``; zeros where none is positive.

    What is no larger than ``resolution`` may be rounding, and is not positive.
    """
    positive = scores.clamp_min(0)
    largest = positive.max() if positive.numel() else 0.0
    return positive / largest if largest > resolution else torch.zeros_like(scores)
