"""Valuations that others published, on the rounds that ours look at."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fedif_flower.round import combine
from fedif_flower.valuation.shapley.exact import all_coalitions, exact_shapley
from fedif_studies.audit.federation import AuditStep


def first_order(step: AuditStep) -> Tensor:
    r"""Return In-Run Data Shapley's first order: :math:`-a_i \langle u_i, g \rangle`.

    J. T. Wang et al., "Data Shapley in One Training Run", ICLR 2025 (arXiv:2406.11011).
    """
    return step.coefficients * step.projections.inner


def second_order(step: AuditStep) -> Tensor:
    r"""Return In-Run Data Shapley's second order, with s the step that was taken.

    .. math:: -a_i \langle u_i, g + \tfrac12 H s \rangle

    the Shapley values of the loss expanded to second order; H s by central differences.
    """
    start, updates = step.updates.global_params, step.updates.client_updates
    taken = combine(torch.zeros_like(start), updates, step.coefficients)
    near = 0.05
    ahead, behind = (step.validation.gradient(start + sign * near * taken) for sign in (1, -1))
    bent = (ahead - behind).double() / (4 * near)  # Half of H s.
    return first_order(step) - step.coefficients * (updates.double() @ bent)


def fedfomo(own_decrease: Tensor, step: AuditStep) -> Tensor:
    """Return FedFomo's values: a member's own loss decrease over its distance; 0 without one.

    Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021
    (arXiv:2012.08565). For short updates it is FedIF's influence.
    """
    length = step.updates.squared_norms.double().sqrt()
    return torch.where(length > 0, own_decrease / length.clamp_min(1e-300), 0.0)


class CGSV:
    """Cosine gradient Shapley values, smoothed over rounds, in which the values are the weights.

    Xu et al., "Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine Learning",
    NeurIPS 2021.

    Parameters
    ----------
    smoothing : float
        How much of a value stays, in [0, 1).
    """

    def __init__(self, smoothing: float = 0.95) -> None:
        self._smoothing = smoothing
        self.values = torch.zeros(0, dtype=torch.float64)

    def take(self, step: AuditStep) -> None:
        """Compare each update with the sum of all, each of length 1 and weighed by its value."""
        if not len(self.values):
            members = step.num_members
            self.values = torch.full((members,), 1 / members, dtype=torch.float64)
        chosen = list(step.updates.client_ids)
        units = normalize(step.updates.client_updates.double(), dim=1, eps=1e-30)
        common = self.values[chosen] @ units  # [d]
        found = cosine_similarity(units, common[None], dim=1, eps=1e-30)
        kept = self._smoothing * self.values[chosen]
        self.values[chosen] = (kept + (1 - self._smoothing) * found).clamp_min(0.0)
        self.values = self.values / self.values.sum().clamp_min(1e-300)


def banzhaf_of(utilities: Tensor) -> Tensor:
    r"""Return Banzhaf values ``[m]`` of a game ``[2**m]``: :math:`2^{1-m} \sum_S v(S+i) - v(S)`.

    J. T. Wang, R. Jia, "Data Banzhaf", AISTATS 2023 (arXiv:2205.15466): they change least where the
    game is noisy.
    """
    m = utilities.numel().bit_length() - 1
    signs = 2.0 * all_coalitions(m).double() - 1.0  # [2**m, m]
    values: Tensor = utilities.double() @ signs / 2 ** (m - 1)
    return values


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
        game = complete(known, self._rank, self._ridge, self._sweeps).sum(dim=0)
        bits = 2 ** torch.arange(self._members)
        return exact_shapley(lambda masks: game[(masks * bits).sum(dim=1)], self._members)


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
