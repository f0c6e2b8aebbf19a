"""Valuations that others published, on the rounds that ours look at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

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
    near = 0.05
    points = (step.start + sign * near * step.taken for sign in (1, -1))
    ahead, behind = map(step.validation.gradient, points)
    bent = (ahead - behind).double() / (4 * near)  # Half of H s.
    return first_order(step) - step.coefficients * (step.rows.double() @ bent)


def fedfomo(own_decrease: Tensor, step: AuditStep) -> Tensor:
    """Return FedFomo's values: a member's own loss decrease over its distance; 0 without one.

    Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021
    (arXiv:2012.08565). For short updates it is FedIF's influence.
    """
    length = step.updates.squared_norms.double().sqrt()
    return torch.where(length > 0, own_decrease / length.clamp_min(1e-300), 0.0)


def cgsv(steps: Sequence[AuditStep], smoothing: float = 0.95) -> Tensor:
    """Return cosine gradient Shapley values, smoothed over rounds: the values are the weights.

    In each round an update is compared with the sum of all, each of length 1 and weighed by its
    value, of which ``smoothing``, in [0, 1), stays. Xu et al., "Gradient-Driven Rewards to
    Guarantee Fairness in Collaborative Machine Learning", NeurIPS 2021.
    """
    members = steps[0].num_members
    values = torch.full((members,), 1 / members, dtype=torch.float64)
    for step in steps:
        chosen, units = list(step.updates.client_ids), normalize(step.rows.double(), eps=1e-30)
        common = values[chosen] @ units  # [d]
        found = cosine_similarity(units, common[None], dim=1, eps=1e-30)
        values[chosen] = (smoothing * values[chosen] + (1 - smoothing) * found).clamp_min(0.0)
        values = values / values.sum().clamp_min(1e-300)
    return values


def shapley_of(utilities: Tensor) -> Tensor:
    """Return the Shapley values ``[m]`` from all coalitions' utilities ``[2**m]``."""
    return exact_shapley(lambda _: utilities, utilities.numel().bit_length() - 1)


def banzhaf_of(utilities: Tensor) -> Tensor:
    r"""Return Banzhaf values ``[m]`` of a game ``[2**m]``: :math:`2^{1-m} \sum_S v(S+i) - v(S)`.

    J. T. Wang, R. Jia, "Data Banzhaf", AISTATS 2023 (arXiv:2205.15466): they change least where the
    game is noisy.
    """
    m = utilities.numel().bit_length() - 1
    signs = 2.0 * all_coalitions(m).double() - 1.0  # [2**m, m]
    values: Tensor = utilities.double() @ signs / 2 ** (m - 1)
    return values


def comfedsv(
    steps: Sequence[AuditStep], rank: int = 3, ridge: float = 1e-3, sweeps: int = 50
) -> Tensor:
    """Return the Shapley values of a game whose rounds x coalitions are completed by low rank.

    A coalition of which somebody was not drawn has no value in that round; a matrix of this rank
    that fits the others says one (see :func:`complete`). A study: nobody should be paid by what was
    never measured. Coalitions are unweighted means of their members' updates.

    Fan et al., "Improving Fairness for Data Valuation in Horizontal Federated Learning", ICDE 2022
    (arXiv:2109.09046).
    """
    known = torch.full((len(steps), 1 << steps[0].num_members), torch.nan, dtype=torch.float64)
    known[:, 0] = 0.0
    for row, step in zip(known, steps, strict=True):
        masks = all_coalitions(len(step.rows))[1:]
        means = masks.to(step.rows) / masks.sum(dim=1, keepdim=True) @ step.rows
        losses = [step.validation.loss(step.start + mean) for mean in means]
        found = step.validation.loss(step.start) - torch.tensor(losses, dtype=torch.float64)
        row[masks.long() @ torch.tensor([1 << i for i in step.updates.client_ids])] = found
    return shapley_of(complete(known, rank, ridge, sweeps).sum(dim=0))


def complete(known: Tensor, rank: int, ridge: float, sweeps: int) -> Tensor:
    """Return a matrix ``[T, n]`` with what is NaN in it by alternating least squares.

    ``ridge`` > 0 keeps factors small, beside the mean square of what is known.
    """
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
