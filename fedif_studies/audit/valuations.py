"""The valuations that an audit compares, each on the rounds of one and the same federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from fedif_flower.valuation.credit import CreditBounds, credited
from fedif_flower.valuation.influence import influence_from, influence_resolution
from fedif_flower.valuation.ledger import ScoreLedger, min_max
from fedif_flower.valuation.objective import Metric
from fedif_flower.valuation.path import QUADRATURES, path_attribution
from fedif_flower.valuation.scores import Scores
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from fedif_studies.audit.federation import AuditStep
from fedif_studies.audit.published import (
    banzhaf_of,
    cgsv,
    comfedsv,
    fedfomo,
    first_order,
    second_order,
    shapley_of,
)

OfRound = Callable[[AuditStep], Tensor]
"""Values those who took part in a round, ``[m]``."""
Valuation = Callable[[Sequence[AuditStep]], Tensor]
"""Values all members of a federation, ``[m]``, by its rounds; more is better."""


def summed(value: OfRound) -> Valuation:
    """Return the valuation that is the sum of a value of each round that a member took part in."""

    def values(steps: Sequence[AuditStep]) -> Tensor:
        found = torch.zeros(steps[0].num_members, dtype=torch.float64)
        for step in steps:
            found[list(step.updates.client_ids)] += value(step)
        return found

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
    taken = (step.coefficients @ updates).expand_as(updates)  # [m, d]
    return torch.nn.functional.cosine_similarity(updates, taken, dim=1, eps=1e-30)


def path(rule: str) -> OfRound:
    """Return path attribution by a quadrature rule."""
    return lambda step: path_attribution(
        step.validation.gradient, step.start, step.rows, step.coefficients, rule
    )


def paid(steps: Sequence[AuditStep], *, secret: bool = False) -> Tensor:
    """Return path attribution by Simpson's rule within bounds, on the data that weigh or pay."""
    bounds = CreditBounds()

    def credits_of(step: AuditStep) -> Tensor:
        rule, data = QUADRATURES["simpson"], step.paying if secret else step.validation
        points = (step.start + node * step.taken for node in rule.nodes)
        gradients = torch.stack([data.gradient(point).double() for point in points])
        gradient = torch.tensor(rule.weights, dtype=torch.float64) @ gradients  # The mean, [d].
        updates, coefficients = step.rows.double(), step.coefficients
        credit = bounds.bound(
            client_ids=step.updates.client_ids,
            examples=step.updates.num_examples,
            gram=updates @ updates.T,
            weights=step.weights,
            applied=coefficients,
            shares=step.past.shares(updates),
        )
        borrowed = -coefficients * (credit.returned @ step.past.shares(gradient[None])[0])  # [m]
        return credited(-coefficients * (updates @ gradient), credit.kept, borrowed)

    return summed(credits_of)(steps)


def coalitions(estimator: str, utility: Metric) -> Callable[[AuditStep], Scores]:
    """Return a Shapley estimator's values; coalitions are unweighted means of models."""

    def score(step: AuditStep) -> Scores:
        valuation = ShapleyValuation(step.validation, estimator=estimator, utility=utility)
        return valuation.score(step.updates)

    return score


EXACT = "exact in-run Shapley"  # What others are measured against, beside them.
VALUATIONS: Mapping[str, Valuation] = {
    "FedIF Omega": smoothed(influence),
    "accumulative influence": summed(lambda step: step.projections.inner),
    "path attribution (simpson)": summed(path("simpson")),
    "path attribution (trapezoid)": summed(path("trapezoid")),
    "path attribution, bounded": paid,
    "path attribution, bounded, secret data": partial(paid, secret=True),
    "AFedSV Omega": smoothed(coalitions("complementary", "accuracy"), initial=0.5),
    "own loss decrease": summed(own_decrease),
    "leave-one-out": summed(lambda step: coalitions("leave-one-out", "loss")(step).values),
    "GTG-Shapley": summed(lambda step: coalitions("gtg", "accuracy")(step).values),
    "cosine with the step": summed(cosine),
    "In-Run Data Shapley, first order": summed(first_order),
    "In-Run Data Shapley, second order": summed(second_order),
    "FedFomo": summed(lambda step: fedfomo(own_decrease(step), step)),
    "CGSV": cgsv,
    "Banzhaf, in-run": summed(lambda step: banzhaf_of(step.game)),
    "ComFedSV": comfedsv,
    EXACT: summed(lambda step: shapley_of(step.game)),
}
ALL_COALITIONS = (EXACT, "Banzhaf, in-run", "ComFedSV")  # They look at each of 2**m.
