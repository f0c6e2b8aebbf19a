"""ComFedSV: Shapley values where not everybody is drawn, on the rounds that ours look at."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.audit.federation import AuditStep
from fedif_studies.audit.valuations import shapley_of


class ComFedSV:
    """Shapley values of a game whose rounds x coalitions are completed by low rank.

    A coalition of which somebody was not drawn has no value in that round; a matrix of this rank
    that fits the others says one. A study: nobody should be paid by what was never measured.

    Fan et al., "Improving Fairness for Data Valuation in Horizontal Federated Learning", ICDE 2022
    (arXiv:2109.09046).

    Parameters
    ----------
    rank : int
        Of the completion, >= 1.
    ridge : float
        What keeps factors small, beside the mean square of what is known, > 0.
    sweeps : int
        Alternating least squares, >= 1.
    """

    def __init__(self, rank: int = 3, ridge: float = 1e-3, sweeps: int = 50) -> None:
        self._rank, self._ridge, self._sweeps = rank, ridge, sweeps
        self._known: list[Tensor] = []  # [2**n] a round; NaN where it is not known.
        self._members = 0

    def take(self, step: AuditStep) -> None:
        """Measure the coalitions of those who were drawn, as unweighted means of their updates."""
        self._members = step.num_members
        updates, start = step.updates.client_updates, step.updates.global_params
        masks = all_coalitions(len(updates))[1:]
        means = masks.to(updates) / masks.sum(dim=1, keepdim=True)
        before = step.validation.loss(start)
        found = [before - step.validation.loss(start + row @ updates) for row in means]
        bits = torch.tensor([1 << i for i in step.updates.client_ids])
        row = torch.full((1 << self._members,), torch.nan, dtype=torch.float64)
        row[0] = 0.0
        row[(masks * bits).sum(dim=1)] = torch.tensor(found, dtype=torch.float64)
        self._known.append(row)

    @property
    def values(self) -> Tensor:
        """The Shapley values of the rounds' sum, ``[m]``."""
        known = torch.stack(self._known)
        return shapley_of(complete(known, self._rank, self._ridge, self._sweeps).sum(dim=0))


def complete(known: Tensor, rank: int, ridge: float, sweeps: int) -> Tensor:
    """Return a matrix ``[T, n]`` with what is NaN in it by alternating least squares."""
    there = ~known.isnan()
    if there.all():
        return known
    data, seen = known.nan_to_num(0.0), there.double()
    penalty = ridge * data.square().sum().sqrt() / seen.sum().sqrt()
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(known.shape[1], rank, generator=generator, dtype=torch.float64)
    eye = penalty.clamp_min(1e-12) * torch.eye(rank, dtype=torch.float64)

    def fit(factor: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the best other factor: one ridge regression for each row."""
        normal = torch.einsum("tn,nr,ns->trs", mask, factor, factor) + eye
        found: Tensor = torch.linalg.solve(normal, (values @ factor)[..., None])[..., 0]
        return found

    for _ in range(sweeps):
        left = fit(right, data, seen)
        right = fit(left, data.T, seen.T)
    return torch.where(there, known, left @ right.T)
