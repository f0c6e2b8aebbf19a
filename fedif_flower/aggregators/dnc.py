"""Divide and conquer: updates far along the main direction of their spread are left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import gram_matrix
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.sections import CheckedFields
from fedif_flower.settings import MaliciousFraction, Setting


@dataclass(frozen=True)
class DnC(CheckedFields):
    """Average the updates that do not stand out along the main direction of their spread.

    Formula: :func:`dnc_weights`.

    Parameters
    ----------
    malicious_fraction : float
        Assumed share of malicious clients, in [0, 1].
    iterations : int
        Random sets of coordinates that are looked at, >= 1.
    """

    gives_weights = True

    malicious_fraction: MaliciousFraction = 0.2
    iterations: Annotated[int, Setting("random sets of coordinates that are looked at", ge=1)] = 1

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return equal weights ``[m]`` for those that are kept."""
        weights = dnc_weights(
            updates.client_updates,
            round(self.malicious_fraction * updates.num_clients),
            updates.generator("dnc"),
            iterations=self.iterations,
        )
        return Aggregation(weights=weights)


def dnc_weights(
    updates: Tensor,
    num_malicious: int,
    generator: torch.Generator,
    *,
    iterations: int = 1,
    filtered: float = 1.0,
    coordinates: int = 10_000,
) -> Tensor:
    r"""Return equal weights for the updates that no iteration leaves out.

    .. math:: s_i = \langle v, x_i - \mu \rangle^2

    with v the main direction (top right singular vector) of the centred updates, over a random
    subset of the coordinates. The :math:`\lceil c f \rceil` largest are left out. Where iterations
    leave out all, the model stays.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, m >= 1, finite.
    num_malicious : int
        f >= 0.
    generator : torch.Generator
        On the CPU: chooses the coordinates.
    iterations : int
        >= 1.
    filtered : float
        c > 0.
    coordinates : int
        How many are looked at, >= 1; all where there are no more.

    Returns
    -------
    Tensor
        ``[m]``, float64.

    References
    ----------
    Shejwalkar & Houmansadr, 2021 (Manipulating the Byzantine), algorithm 2.
    """
    m, d = updates.shape
    kept = max(m - -int(-filtered * num_malicious // 1), 1)
    good = torch.ones(m, dtype=torch.bool)
    for _ in range(iterations):
        chosen = torch.randperm(d, generator=generator)[:coordinates].to(updates.device)
        part = updates[:, chosen].double()  # [m, coordinates]
        # The projections on v are an eigenvector of the small matrix, times a constant.
        _, vectors = torch.linalg.eigh(gram_matrix(part - part.mean(dim=0)))
        best = vectors[:, -1].square().argsort(stable=True)[:kept].cpu()
        good &= torch.zeros_like(good).scatter_(0, best, True)
    return good.double() / good.sum().clamp_min(1)
