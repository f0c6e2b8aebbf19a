"""The valuations that an audit compares on the same rounds: the project's and published ones."""

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
"""Returns the values ``[m]`` of a round's m participants."""
Valuation = Callable[[Sequence[AuditStep]], Tensor]
"""Returns the values ``[m]`` of a federation's m members from its rounds; more is better."""


def summed(value: RoundValue) -> Valuation:
    """Return the valuation that adds up a member's values over the rounds that it took part in."""

    def values(steps: Sequence[AuditStep]) -> Tensor:
        sums = torch.zeros(steps[0].num_members, dtype=torch.float64)
        for step in steps:
            sums[list(step.updates.client_ids)] += value(step)
        return sums

    return values


def smoothed(score: Callable[[AuditStep], Scores], initial: float = 0.0) -> Valuation:
    """Return the valuation Omega of FedIF and AFedSV, from a round's scores.

    Scores are brought to [0, 1] within each round (min-max) and smoothed over rounds with
    gamma = 0.3. ``initial`` is Omega before a member's first round.
    """

    def values(steps: Sequence[AuditStep]) -> Tensor:
        ledger = ScoreLedger(0.3, initial=initial)
        for step in steps:
            scores = score(step)
            ledger.update(step.updates.client_ids, min_max(scores.values, scores.resolution))
        return ledger.scores_of(range(steps[0].num_members))

    return values


def influence(step: AuditStep) -> Scores:
    """Return FedIF's round influences Phi, and by how much rounding may part equal ones."""
    projections = step.projections
    return Scores(influence_from(projections), resolution=influence_resolution(projections))


def own_decrease(step: AuditStep) -> Tensor:
    """Return by how much each member's own model lowers the validation loss, ``[m]``."""
    after = [step.validation.loss(params) for params in step.updates.client_params()]
    return step.validation.loss(step.start) - torch.tensor(after, dtype=torch.float64)


def cosine(step: AuditStep) -> Tensor:
    """Return the cosine of each update with the round's step, ``[m]``; 0 for an update of 0."""
    updates = step.rows.double()
    global_step = (step.coefficients @ updates).expand_as(updates)  # [m, d]
    # The default eps, 1e-8, would lower the cosine of updates that are shorter than that.
    return cosine_similarity(updates, global_step, dim=1, eps=1e-30)


def path(rule: str) -> RoundValue:
    """Return path attribution by a quadrature rule, a key of ``QUADRATURES``."""

    def value(step: AuditStep) -> Tensor:
        return path_attribution(
            step.validation.gradient, step.start, step.rows, step.coefficients, rule
        )

    return value


def bounded_credit(steps: Sequence[AuditStep], *, secret: bool = False) -> Tensor:
    """Return what members are credited with: path attribution by Simpson's rule, within bounds.

    The loss is that on the validation set, or if ``secret``, on the set that nothing was weighed
    by.
    """
    bounds = CreditBounds()  # New for each federation, since bounds remember earlier rounds.

    def value(step: AuditStep) -> Tensor:
        data = step.paying if secret else step.validation
        return _bounded_credit_of(step, data, bounds)

    return summed(value)(steps)


def _bounded_credit_of(step: AuditStep, data: Validation, bounds: CreditBounds) -> Tensor:
    """Return what a round's members are credited with ``[m]``, by the loss on ``data``."""
    gradient = _mean_gradient(step, data)
    updates = step.rows.double()
    credit = bounds.bound(
        client_ids=step.updates.client_ids,
        examples=step.updates.num_examples,
        gram=updates @ updates.T,
        weights=step.weights,
        coordinates=step.past.coordinates(updates),
        length_factors=step.length_factors,
    )
    gains = -step.coefficients * (updates @ gradient)  # [m]
    # The part of an update along past steps was other members' work: what exceeds the bound is
    # taken off.
    along_past = step.past.coordinates(gradient[None])[0]
    borrowed = -step.coefficients * (credit.returned @ along_past)  # [m]
    return credited(gains, credit.factor, borrowed)


def _mean_gradient(step: AuditStep, data: Validation) -> Tensor:
    """Return the mean of the loss's gradient ``[d]`` along the step, by Simpson's rule."""
    rule = QUADRATURES["simpson"]
    gradients = []
    for node in rule.nodes:
        point = step.start + node * step.vector
        gradients.append(data.gradient(point).double())
    return torch.tensor(rule.weights, dtype=torch.float64) @ torch.stack(gradients)


def coalitions(estimator: str, utility: Metric) -> Callable[[AuditStep], Scores]:
    """Return the scores of a Shapley estimator, a name that ``ShapleyValuation`` knows.

    A coalition's model is the unweighted mean of its members' models.
    """

    def score(step: AuditStep) -> Scores:
        valuation = ShapleyValuation(step.validation, estimator=estimator, utility=utility)
        return valuation.score(step.updates)

    return score


def number_of_examples(step: AuditStep) -> Tensor:
    """Return how many examples each member claims: the control, which ignores the updates."""
    return step.updates.num_examples.double()


def first_order(step: AuditStep) -> Tensor:
    r"""Return In-Run Data Shapley's first order: :math:`-a_i \langle u_i, g \rangle`.

    :math:`u_i` is member i's update, :math:`a_i` its coefficient in the step, and g the gradient of
    the validation loss before the step.

    J. T. Wang et al., "Data Shapley in One Training Run", ICLR 2025 (arXiv:2406.11011).
    """
    return step.coefficients * step.projections.inner


def second_order(step: AuditStep) -> Tensor:
    r"""Return In-Run Data Shapley's second order.

    .. math:: -a_i \langle u_i, g + \tfrac12 H s \rangle

    with s the step, H the Hessian of the validation loss before the step, and the other symbols of
    :func:`first_order`. These are the Shapley values if the loss is expanded to second order. H s
    is computed by central differences.
    """
    near = 0.05  # The gradients are taken at -5 % and 5 % of the step.
    ahead = step.validation.gradient(step.start + near * step.vector)
    behind = step.validation.gradient(step.start - near * step.vector)
    half_curvature = (ahead - behind).double() / (4 * near)  # Half of H s.
    return first_order(step) - step.coefficients * (step.rows.double() @ half_curvature)


def fedfomo(step: AuditStep) -> Tensor:
    """Return FedFomo's values: the loss decrease by a member's own model, over the update's length.

    The value of an update of length 0 is 0. For short updates the values are FedIF's influences.

    Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021
    (arXiv:2012.08565).
    """
    length = step.updates.squared_norms.double().sqrt()
    per_distance = own_decrease(step) / length.clamp_min(1e-300)
    return torch.where(length > 0, per_distance, 0.0)


def cgsv(steps: Sequence[AuditStep], smoothing: float = 0.95) -> Tensor:
    """Return cosine gradient Shapley values (CGSV), smoothed over rounds.

    In each round, all updates are scaled to length 1 and summed, with the members' values as
    weights. A member's new value is its update's cosine with this sum, mixed with its old value;
    ``smoothing``, in [0, 1), is the share of the old one. Values are >= 0 and sum to 1.

    Xu et al., "Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine Learning",
    NeurIPS 2021.
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
    """Return the Shapley values ``[m]`` of a game, given all coalitions' utilities ``[2**m]``."""
    return exact_shapley(lambda _: utilities, _members_of(utilities))


def banzhaf_of(utilities: Tensor) -> Tensor:
    r"""Return Banzhaf values ``[m]`` of a game ``[2**m]``: :math:`2^{1-m} \sum_S v(S+i) - v(S)`.

    The sum is over all coalitions S without member i. Of all semivalues, Banzhaf's depend least on
    noise in the utilities.

    J. T. Wang, R. Jia, "Data Banzhaf", AISTATS 2023 (arXiv:2205.15466).
    """
    m = _members_of(utilities)
    signs = 2.0 * all_coalitions(m).double() - 1.0  # [2**m, m]
    values: Tensor = utilities.double() @ signs / 2 ** (m - 1)
    return values


def _members_of(utilities: Tensor) -> int:
    """Return m, the number of members in a game with utilities ``[2**m]``."""
    return utilities.numel().bit_length() - 1


def comfedsv(
    steps: Sequence[AuditStep], rank: int = 3, ridge: float = 1e-3, sweeps: int = 50
) -> Tensor:
    """Return ComFedSV: Shapley values of a game whose missing utilities a low-rank matrix fills in.

    A coalition's utility in a round is the loss decrease by the unweighted mean of its members'
    updates. It is not measured if one of them was not drawn. A matrix (rounds x coalitions) of rank
    ``rank`` is fitted to the measured utilities and gives the missing ones (see :func:`complete`
    for ``ridge`` and ``sweeps``). The values are for comparison only: members should not be paid by
    utilities that were never measured.

    Fan et al., "Improving Fairness for Data Valuation in Horizontal Federated Learning", ICDE 2022
    (arXiv:2109.09046).
    """
    coalitions_of_all = 1 << steps[0].num_members
    worth = torch.full((len(steps), coalitions_of_all), torch.nan, dtype=torch.float64)
    worth[:, 0] = 0.0  # The empty coalition changes nothing.
    for row, step in zip(worth, steps, strict=True):
        masks = all_coalitions(len(step.rows))[1:]
        means = masks.to(step.rows) / masks.sum(dim=1, keepdim=True) @ step.rows
        losses = [step.validation.loss(step.start + mean) for mean in means]
        decreases = step.validation.loss(step.start) - torch.tensor(losses, dtype=torch.float64)
        # In the index of a coalition of all members, bit i stands for member i.
        bits = torch.tensor([1 << member for member in step.updates.client_ids])
        row[masks.long() @ bits] = decreases
    return shapley_of(complete(worth, rank, ridge, sweeps).sum(dim=0))


def complete(matrix: Tensor, rank: int, ridge: float, sweeps: int) -> Tensor:
    """Return a matrix ``[T, n]`` whose NaN are filled in by a product of two low-rank factors.

    The factors ``[T, rank]`` and ``[n, rank]`` are fitted to the other entries by ``sweeps`` sweeps
    of alternating least squares. ``ridge`` > 0 keeps the factors small: the penalty is ``ridge``
    times the root mean square of the other entries.
    """
    is_measured = ~matrix.isnan()
    if is_measured.all():
        return matrix
    values = matrix.nan_to_num(0.0)
    mask = is_measured.double()
    penalty = ridge * values.square().sum().sqrt() / mask.sum().sqrt()
    # Alternating least squares begin anywhere; from a fixed factor, the values repeat.
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(matrix.shape[1], rank, generator=generator, dtype=torch.float64)
    # Never 0: without a penalty, a row with few entries would have a singular system.
    eye = penalty.clamp_min(1e-12) * torch.eye(rank, dtype=torch.float64)

    def fit(factor: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the factor that fits best with this one: a ridge regression for each row."""
        normal = torch.einsum("tn,nr,ns->trs", mask, factor, factor) + eye
        solved: Tensor = torch.linalg.solve(normal, (values @ factor)[..., None])
        return solved[..., 0]

    for _ in range(sweeps):
        left = fit(right, values, mask)
        right = fit(left, values.T, mask.T)
    return torch.where(is_measured, matrix, left @ right.T)


CONTROL = "number of examples (control)"
EXACT = "exact in-run Shapley"  # The reference for the others, measured on the same rounds.


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
    "path attribution, bounded": bounded_credit,
    "path attribution, bounded, secret data": partial(bounded_credit, secret=True),
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
ALL_COALITIONS = (EXACT, "Banzhaf, in-run", "ComFedSV")  # These evaluate all 2**m coalitions.
