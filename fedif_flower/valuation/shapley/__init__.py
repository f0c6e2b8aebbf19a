"""Shapley values of a round's clients: estimators over one utility type.

A :data:`Utility` maps coalitions, rows of a bool mask ``[c, m]``, to numbers ``[c]``. Every
estimator asks for its coalitions in batches as large as its definition allows; in a
:class:`CoalitionMemo` equal ones are evaluated once. Those that draw return an :class:`Estimate`:
values ``[m]``, and what is left to chance in them. :data:`ESTIMATORS` has all of them by name, with
one signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Generator

from fedif_flower.valuation.shapley.complementary import complementary_shapley
from fedif_flower.valuation.shapley.estimate import Estimate, without_chance
from fedif_flower.valuation.shapley.exact import exact_shapley
from fedif_flower.valuation.shapley.gtg import gtg_shapley
from fedif_flower.valuation.shapley.leave_one_out import leave_one_out
from fedif_flower.valuation.shapley.owen import owen_shapley
from fedif_flower.valuation.shapley.permutation import permutation_shapley
from fedif_flower.valuation.shapley.utility import CoalitionMemo, Utility

__all__ = [
    "ESTIMATORS",
    "CoalitionMemo",
    "Estimate",
    "Estimator",
    "Utility",
    "complementary_shapley",
    "exact_shapley",
    "gtg_shapley",
    "leave_one_out",
    "owen_shapley",
    "permutation_shapley",
]


class Estimator(Protocol):
    """The one signature of :data:`ESTIMATORS`; ``num_samples`` is the estimator's own count."""

    def __call__(
        self, utility: Utility, num_clients: int, *, num_samples: int, generator: Generator
    ) -> Estimate:
        """Return the values ``[m]`` of ``num_clients`` clients, and what is left to chance."""


ESTIMATORS: Mapping[str, Estimator] = {
    "complementary": complementary_shapley,
    "exact": without_chance(exact_shapley),
    "gtg": gtg_shapley,
    "leave-one-out": without_chance(leave_one_out),
    "owen": owen_shapley,
    "permutation": permutation_shapley,
}
"""Estimators by name. ``num_samples``: complementary, samples per stratum; permutation, orders, in
pairs; gtg, most orders; owen, antithetic pairs; exact and leave-one-out need none."""
