"""Shapley values of a round's clients: estimators over one utility type.

A :data:`Utility` maps coalitions, the rows of a bool mask ``[c, m]``, to numbers ``[c]``. Every
estimator passes its coalitions to the utility in batches as large as its definition allows. A
:class:`CoalitionMemo` around the utility evaluates equal coalitions only once. Estimators that draw
coalitions at random return an :class:`Estimate`: values ``[m]`` with their sampling error.
:data:`ESTIMATORS` has all estimators by name; there, each returns an :class:`Estimate`.
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
    """The signature of all :data:`ESTIMATORS`; each counts ``num_samples`` in its own unit."""

    def __call__(
        self, utility: Utility, num_clients: int, *, num_samples: int, generator: Generator
    ) -> Estimate:
        """Return the values ``[m]`` of m = ``num_clients`` clients, with their sampling error."""


ESTIMATORS: Mapping[str, Estimator] = {
    "complementary": complementary_shapley,
    "exact": without_chance(exact_shapley),
    "gtg": gtg_shapley,
    "leave-one-out": without_chance(leave_one_out),
    "owen": owen_shapley,
    "permutation": permutation_shapley,
}
"""Estimators by name. ``num_samples`` is the number of samples per stratum (complementary), of
orders, which come in pairs (permutation), of antithetic pairs (owen), or the largest number of
orders (gtg). The other two, exact and leave-one-out, ignore it."""
