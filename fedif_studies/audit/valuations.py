"""The valuations that an audit compares, ours and published ones, all on the same rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fedif_flower.attribution.credit import CreditBounds, credited
from fedif_flower.attribution.path import QUADRATURES, path_attribution
from fedif_flower.valuation import Validation
from fedif_flower.valuation.influence import influence_from, influence_resolution
from fedif_flower.valuation.ledger import ScoreLedger, Scores, min_max
from fedif_flower.valuation.objective import Metric
from fedif_flower.valuation.shapley.exact import all_coalitions, exact_shapley
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from fedif_studies.audit.federation import AuditStep

RoundValue = Callable[[AuditStep], Tensor]
"""Values those who took part in a round, ``[m]``."""
Valuation = Callable[[Sequence[AuditStep]], Tensor]
"""Values all members of a federation, ``[m]``, by its rounds; more is better."""


def summed(value: RoundValue) -> Valuation:
    """Return the valuation that adds up what each round that a member took part in is worth."""

    def values(steps: Sequence[AuditStep]) -> Tensor:
        sums = torch.zeros(steps[0].num_members, dtype=torch.float64)
        for step in steps:
            sums[list(step.updates.client_ids)] += value(step)
        return sums

    return values


def smoothed(score: Callable[[AuditStep], Scores], initial: float = 0.0) -> Valuation:
    """Return min-max over a round's clients, smoothed over rounds: Omega of FedIF and AFedSV."""

    def values(steps: Sequence[AuditStep]) -> Tensor:
        ledger = ScoreLedger(0.3, initial=initial)
        for step in steps:
            scores = score(step)
            ledger.update(step.updates.client_ids, min_max(scores.values, scores.resolution))
        return ledger.scores_of(range(steps[0].num_members))

    return values


def influence(step: AuditStep) -> Scores:
    """Return FedIF's round influence Phi, and how far apart rounding may put equal ones."""
    projections = step.projections
    return Scores(influence_from(projections), resolution=influence_resolution(projections))


def own_decrease(step: AuditStep) -> Tensor:
    """Return by how much each member's own model lowers the validation loss."""
    after = [step.validation.loss(params) for params in step.updates.client_params()]
    return step.validation.loss(step.start) - torch.tensor(after, dtype=torch.float64)


def cosine(step: AuditStep) -> Tensor:
    """Return the cosine of each update with the step that was taken; 0 for one of length 0."""
    updates = step.rows.double()
    global_step = (step.coefficients @ updates).expand_as(updates)  # [m, d]
    return cosine_similarity(updates, global_step, dim=1, eps=1e-30)


def path(rule: str) -> RoundValue:
    """Return path attribution by a quadrature rule."""

    def value(step: AuditStep) -> Tensor:
        return path_attribution(
            step.validation.gradient, step.start, step.rows, step.coefficients, rule
        )

    return value


def paid(steps: Sequence[AuditStep], *, secret: bool = False) -> Tensor:
    """Return path attribution by Simpson's rule within bounds, on the data that weigh or pay."""
    bounds = CreditBounds()  # They remember the rounds before.

    def value(step: AuditStep) -> Tensor:
        data = step.paying if secret else step.validation
        return _bounded_credit(step, data, bounds)

    return summed(value)(steps)


def _bounded_credit(step: AuditStep, data: Validation, bounds: CreditBounds) -> Tensor:
    """Return what a round's members are credited with ``[m]``, judged by some data."""
    gradient = _mean_gradient(step, data)
    updates = step.rows.double()
    credit = bounds.bound(
        client_ids=step.updates.client_ids,
        examples=step.updates.num_examples,
        gram=updates @ updates.T,
        weights=step.weights,
        shares=step.past.shares(updates),
        length_factors=step.length_factors,
    )
    gains = -step.coefficients * (updates @ gradient)  # [m]
    # What an update has of past steps is theirs who took them.
    along_past = step.past.shares(gradient[None])[0]
    borrowed = -step.coefficients * (credit.returned @ along_past)  # [m]
    return credited(gains, credit.kept, borrowed)


def _mean_gradient(step: AuditStep, data: Validation) -> Tensor:
    """Return the loss's mean gradient ``[d]`` along the step, by Simpson's rule."""
    rule = QUADRATURES["simpson"]
    gradients = []
    for node in rule.nodes:
        point = step.start + node * step.taken
        gradients.append(data.gradient(point).double())
    return torch.tensor(rule.weights, dtype=torch.float64) @ torch.stack(gradients)


def coalitions(estimator: str, utility: Metric) -> Callable[[AuditStep], Scores]:
    """Return a Shapley estimator's values; coalitions are unweighted means of models."""

    def score(step: AuditStep) -> Scores:
        valuation = ShapleyValuation(step.validation, estimator=estimator, utility=utility)
        return valuation.score(step.updates)

    return score


def number_of_examples(step: AuditStep) -> Tensor:
    """Return how many examples each member says it has: the control, which looks at no update."""
    return step.updates.num_examples.double()


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
    ahead = step.validation.gradient(step.start + near * step.taken)
    behind = step.validation.gradient(step.start - near * step.taken)
    half_curvature = (ahead - behind).double() / (4 * near)  # Half of H s.
    return first_order(step) - step.coefficients * (step.rows.double() @ half_curvature)


def fedfomo(step: AuditStep) -> Tensor:
    """Return FedFomo's values: a member's own loss decrease over its distance; 0 without one.

    Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021
    (arXiv:2012.08565). For short updates it is FedIF's influence.
    """
    length = step.updates.squared_norms.double().sqrt()
    per_distance = own_decrease(step) / length.clamp_min(1e-300)
    return torch.where(length > 0, per_distance, 0.0)


def cgsv(steps: Sequence[AuditStep], smoothing: float = 0.95) -> Tensor:
    """Return cosine gradient Shapley values, smoothed over rounds: the values are the weights.

    In each round an update is compared with the sum of all, each of length 1 and weighed by its
    value. ``smoothing``, in [0, 1), is the share of the old value that stays. Xu et al.,
    "Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine Learning", NeurIPS 2021.
    """
    members = steps[0].num_members
    values = torch.full((members,), 1 / members, dtype=torch.float64)
    for step in steps:
        chosen = list(step.updates.client_ids)
        units = normalize(step.rows.double(), eps=1e-30)
        common = values[chosen] @ units  # [d]
        cosines = cosine_similarity(units, common[None], dim=1, eps=1e-30)
        values[chosen] = (smoothing * values[chosen] + (1 - smoothing) * cosines).clamp_min(0.0)
        values = values / values.sum().clamp_min(1e-300)
    return values


def shapley_of(utilities: Tensor) -> Tensor:
    """Return the Shapley values ``[m]`` from all coalitions' utilities ``[2**m]``."""
    return exact_shapley(lambda _: utilities, _members_of(utilities))


def banzhaf_of(utilities: Tensor) -> Tensor:
    r"""Return Banzhaf values ``[m]`` of a game ``[2**m]``: :math:`2^{1-m} \sum_S v(S+i) - v(S)`.

    J. T. Wang, R. Jia, "Data Banzhaf", AISTATS 2023 (arXiv:2205.15466): they change least where the
    game is noisy.
    """
    m = _members_of(utilities)
    signs = 2.0 * all_coalitions(m).double() - 1.0  # [2**m, m]
    values: Tensor = utilities.double() @ signs / 2 ** (m - 1)
    return values


def _members_of(utilities: Tensor) -> int:
    """Return how many members' coalitions have utilities ``[2**m]``: m."""
    return utilities.numel().bit_length() - 1


def comfedsv(
    steps: Sequence[AuditStep], rank: int = 3, ridge: float = 1e-3, sweeps: int = 50
) -> Tensor:
    """Return the Shapley values of a game whose rounds x coalitions are completed by low rank.

    A coalition with a member who was not drawn has no value in that round; a matrix of this rank
    that fits the others says one (see :func:`complete`). A study: nobody should be paid by what was
    never measured. Coalitions are unweighted means of their members' updates.

    Fan et al., "Improving Fairness for Data Valuation in Horizontal Federated Learning", ICDE 2022
    (arXiv:2109.09046).
    """
    coalitions_of_all = 1 << steps[0].num_members
    worth = torch.full((len(steps), coalitions_of_all), torch.nan, dtype=torch.float64)
    worth[:, 0] = 0.0  # Nobody changes nothing.
    for row, step in zip(worth, steps, strict=True):
        masks = all_coalitions(len(step.rows))[1:]
        means = masks.to(step.rows) / masks.sum(dim=1, keepdim=True) @ step.rows
        losses = [step.validation.loss(step.start + mean) for mean in means]
        decreases = step.validation.loss(step.start) - torch.tensor(losses, dtype=torch.float64)
        # Among all members' coalitions, bit i stands for member i.
        bits = torch.tensor([1 << member for member in step.updates.client_ids])
        row[masks.long() @ bits] = decreases
    return shapley_of(complete(worth, rank, ridge, sweeps).sum(dim=0))


def complete(matrix: Tensor, rank: int, ridge: float, sweeps: int) -> Tensor:
    """Return a matrix ``[T, n]`` whose NaN are filled in by alternating least squares.

    ``ridge`` > 0 keeps factors small, beside the mean square of the other entries.
    """
    is_measured = ~matrix.isnan()
    if is_measured.all():
        return matrix
    values = matrix.nan_to_num(0.0)
    mask = is_measured.double()
    penalty = ridge * values.square().sum().sqrt() / mask.sum().sqrt()
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(matrix.shape[1], rank, generator=generator, dtype=torch.float64)
    eye = penalty.clamp_min(1e-12) * torch.eye(rank, dtype=torch.float64)

    def fit(factor: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the best other factor: one ridge regression for each row."""
        normal = torch.einsum("tn,nr,ns->trs", mask, factor, factor) + eye
        solved: Tensor = torch.linalg.solve(normal, (values @ factor)[..., None])
        return solved[..., 0]

    for _ in range(sweeps):
        left = fit(right, values, mask)
        right = fit(left, values.T, mask.T)
    return torch.where(is_measured, matrix, left @ right.T)


CONTROL = "number of examples (control)"
EXACT = "exact in-run Shapley"  # What others are measured against, beside them.


def _leave_one_out(step: AuditStep) -> Tensor:
    return coalitions("leave-one-out", "loss")(step).values


def _gtg_shapley(step: AuditStep) -> Tensor:
    return coalitions("gtg", "accuracy")(step).values


VALUATIONS: Mapping[str, Valuation] = {
    CONTROL: summed(number_of_examples),
    "FedIF Omega": smoothed(influence),
    "accumulative influence": summed(lambda step: step.projections.inner),
    "path attribution (simpson)": summed(path("simpson")),
    "path attribution (trapezoid)": summed(path("trapezoid")),
    "path attribution, bounded": paid,
    "path attribution, bounded, secret data": partial(paid, secret=True),
    "AFedSV Omega": smoothed(coalitions("complementary", "accuracy"), initial=0.5),
    "own loss decrease": summed(own_decrease),
    "leave-one-out": summed(_leave_one_out),
    "GTG-Shapley": summed(_gtg_shapley),
    "cosine with the step": summed(cosine),
    "In-Run Data Shapley, first order": summed(first_order),
    "In-Run Data Shapley, second order": summed(second_order),
    "FedFomo": summed(fedfomo),
    "CGSV": cgsv,
    "Banzhaf, in-run": summed(lambda step: banzhaf_of(step.game)),
    "ComFedSV": comfedsv,
    EXACT: summed(lambda step: shapley_of(step.game)),
}
ALL_COALITIONS = (EXACT, "Banzhaf, in-run", "ComFedSV")  # They look at each of 2**m coalitions.
