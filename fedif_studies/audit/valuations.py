"""The valuations that an audit compares, each on the rounds of one and the same federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedif_flower.valuation.credit import CreditBounds, RoundGeometry, credited
from fedif_flower.valuation.influence import influence_from, influence_resolution
from fedif_flower.valuation.ledger import ScoreLedger, min_max
from fedif_flower.valuation.objective import Metric
from fedif_flower.valuation.path import path_attribution
from fedif_flower.valuation.scores import Scores
from fedif_flower.valuation.shapley import exact_shapley
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from fedif_studies.audit.federation import AuditStep, Watcher
from fedif_studies.audit.published import (
    CGSV,
    ComFedSV,
    banzhaf_of,
    fedfomo,
    first_order,
    second_order,
)


class Summed:
    """A valuation that is the sum of a value of each round that a member took part in."""

    def __init__(self, value: Callable[[AuditStep], Tensor]) -> None:
        self._value = value
        self._sum = torch.zeros(0, dtype=torch.float64)

    def take(self, step: AuditStep) -> None:
        """Add a round's values."""
        if not len(self._sum):
            self._sum = torch.zeros(step.num_members, dtype=torch.float64)
        self._sum[list(step.updates.client_ids)] += self._value(step)

    @property
    def values(self) -> Tensor:
        """The sums, ``[m]``."""
        return self._sum.clone()


class Smoothed:
    """Min-max over the round's clients, smoothed over rounds: Omega of FedIF and AFedSV."""

    def __init__(
        self,
        score: Callable[[AuditStep], Scores],
        *,
        gamma: float = 0.3,
        initial: float = 0.0,
        bias_correction: bool = False,
    ) -> None:
        self._score = score
        self._ledger = ScoreLedger(gamma, initial=initial, bias_correction=bias_correction)
        self._num_members = 0

    def take(self, step: AuditStep) -> None:
        """Smooth a round's scores."""
        self._num_members = step.num_members
        scores = self._score(step)
        normalized = min_max(scores.values, scores.resolution)
        self._ledger.update(step.updates.client_ids, normalized)

    @property
    def values(self) -> Tensor:
        """Omega, ``[m]``."""
        return self._ledger.scores_of(range(self._num_members))


def influence(step: AuditStep) -> Tensor:
    """Return FedIF's round influence Phi."""
    return influence_from(step.projections)


def influence_scores(step: AuditStep) -> Scores:
    """Return the same, and how far apart rounding may put equal ones."""
    return Scores(influence(step), resolution=influence_resolution(step.projections))


def accumulative_influence(step: AuditStep) -> Tensor:
    """Return FedIF's un-normalised influence, which INF sums up."""
    return step.projections.inner


def own_decrease(step: AuditStep) -> Tensor:
    """Return by how much each member's own model lowers the validation loss."""
    before = step.validation.loss(step.updates.global_params)
    after = [step.validation.loss(params) for params in step.updates.client_params()]
    return before - torch.tensor(after, dtype=torch.float64)


def cosine(step: AuditStep) -> Tensor:
    """Return the cosine of each update with the step that was taken; 0 for one of length 0."""
    updates = step.updates.client_updates.double()
    taken = (step.coefficients @ updates).expand_as(updates)  # [m, d]
    return torch.nn.functional.cosine_similarity(updates, taken, dim=1, eps=1e-30)


def step_game(step: AuditStep) -> Tensor:
    """Return what each coalition gains ``[2**m]`` if its members' parts of the step are put in."""
    start, updates = step.updates.global_params, step.updates.client_updates
    parts = all_coalitions(len(updates)).to(updates) * step.coefficients.to(updates)
    found = [step.validation.means(start + row @ updates, None, ("loss",)) for row in parts]
    return -torch.cat(found).double()


def exact_in_run(step: AuditStep) -> Tensor:
    """Return the Shapley values of the game in which members' parts of the step are put in."""
    return shapley_of(step_game(step))


def shapley_of(utilities: Tensor) -> Tensor:
    """Return the Shapley values ``[m]`` from all coalitions' utilities ``[2**m]``."""
    m = utilities.numel().bit_length() - 1
    bits = 2 ** torch.arange(m)
    return exact_shapley(lambda masks: utilities[(masks * bits).sum(dim=1)], m)


def path(rule: str) -> Callable[[AuditStep], Tensor]:
    """Return path attribution by a quadrature rule."""

    def value(step: AuditStep) -> Tensor:
        updates = step.updates
        return path_attribution(
            step.validation.gradient,
            updates.global_params,
            updates.client_updates,
            step.coefficients,
            rule,
        )

    return value


class PaidPath(Summed):
    """Path attribution by Simpson's rule, on the data that weigh or pay, bounded or not."""

    def __init__(self, bounds: CreditBounds | None = None, *, secret: bool = False) -> None:
        super().__init__(self._credits)
        self._bounds, self._secret = bounds, secret

    def _credits(self, step: AuditStep) -> Tensor:
        """Return a round's values."""
        gradient = step.mean_paying_gradient if self._secret else step.mean_gradient
        updates = step.updates.client_updates.double()
        found = -step.coefficients * (updates @ gradient)  # [m]
        if self._bounds is not None:
            credit = self._bounds.bound(
                RoundGeometry(
                    client_ids=step.updates.client_ids,
                    examples=step.updates.num_examples,
                    gram=updates @ updates.T,
                    weights=step.weights,
                    applied=step.coefficients,
                    shares=step.past.shares(updates),
                )
            )
            along = credit.returned @ step.past.shares(gradient[None])[0]  # [m]
            borrowed = -step.coefficients * along
            found = credited(found, credit.kept, borrowed)
        return found


def coalition_scores(estimator: str, utility: Metric) -> Callable[[AuditStep], Scores]:
    """Return a Shapley estimator's values; coalitions are unweighted means of models."""
    valuations: dict[int, ShapleyValuation] = {}

    def value(step: AuditStep) -> Scores:
        known = valuations.get(id(step.validation))
        if known is None:
            known = valuations[id(step.validation)] = ShapleyValuation(
                step.validation,
                estimator=estimator,
                utility=utility,
            )
        return known.score(step.updates)

    return value


def coalition_values(estimator: str, utility: Metric) -> Callable[[AuditStep], Tensor]:
    """Return the same as values alone."""
    score = coalition_scores(estimator, utility)
    return lambda step: score(step).values


VALUATIONS: Mapping[str, Callable[[], Watcher]] = {
    "FedIF Omega": lambda: Smoothed(influence_scores),
    "accumulative influence": lambda: Summed(accumulative_influence),
    "path attribution (simpson)": lambda: Summed(path("simpson")),
    "path attribution (trapezoid)": lambda: Summed(path("trapezoid")),
    "path attribution, bounded": lambda: PaidPath(CreditBounds()),
    "path attribution, bounded, secret data": lambda: PaidPath(CreditBounds(), secret=True),
    "AFedSV Omega": lambda: Smoothed(coalition_scores("complementary", "accuracy"), initial=0.5),
    "own loss decrease": lambda: Summed(own_decrease),
    "leave-one-out": lambda: Summed(coalition_values("leave-one-out", "loss")),
    "GTG-Shapley": lambda: Summed(coalition_values("gtg", "accuracy")),
    "cosine with the step": lambda: Summed(cosine),
    "In-Run Data Shapley, first order": lambda: Summed(first_order),
    "In-Run Data Shapley, second order": lambda: Summed(second_order),
    "FedFomo": lambda: Summed(lambda step: fedfomo(own_decrease(step), step)),
    "CGSV": CGSV,
    "Banzhaf, in-run": lambda: Summed(lambda step: banzhaf_of(step_game(step))),
    "ComFedSV": ComFedSV,
}
EXACT = "exact in-run Shapley"
ALL_COALITIONS = (EXACT, "Banzhaf, in-run", "ComFedSV")  # They look at each of 2**m.
# What others are measured against, beside them.
WATCHERS: Mapping[str, Callable[[], Watcher]] = {
    **VALUATIONS,
    EXACT: lambda: Summed(exact_in_run),
}
