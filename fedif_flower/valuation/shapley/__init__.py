"""Shapley values of a round's clients: estimators over one utility type.

A :data:`Utility` maps coalitions, rows of a bool mask ``[c, m]``, to numbers ``[c]``. Every
estimator returns a :class:`ShapleyEstimate` and asks for its coalitions in batches as large as
its definition allows. :data:`ESTIMATORS` has them all by name, with one signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from torch import Generator

from fedif_flower.valuation.shapley.complementary import complementary_shapley
from fedif_flower.valuation.shapley.estimate import CoalitionMemo, ShapleyEstimate, Utility
from fedif_flower.valuation.shapley.exact import exact_shapley
from fedif_flower.valuation.shapley.gtg import gtg_shapley
from fedif_flower.valuation.shapley.leave_one_out import leave_one_out
from fedif_flower.valuation.shapley.owen import owen_shapley
from fedif_flower.valuation.shapley.permutation import permutation_shapley

__all__ = [
    "ESTIMATORS",
    "CoalitionMemo",
    "Estimator",
    "ShapleyEstimate",
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
    ) -> ShapleyEstimate:
        """Return the values ``[m]`` of ``num_clients`` clients, and what they cost."""
        ...


def _without_draws(estimator: Callable[[Utility, int], ShapleyEstimate]) -> Estimator:
    """Return an estimator that draws nothing with the signature of those that do."""

    def estimate(
        utility: Utility,
        num_clients: int,
        *,
        num_samples: int,  # noqa: ARG001
        generator: Generator,  # noqa: ARG001
    ) -> ShapleyEstimate:
        return estimator(utility, num_clients)

    return estimate


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        "complementary": complementary_shapley,
        "exact": _without_draws(exact_shapley),
        "gtg": gtg_shapley,
        "leave-one-out": _without_draws(leave_one_out),
        "owen": owen_shapley,
        "permutation": permutation_shapley,
    }
)
"""Estimators by name. ``num_samples``: complementary, samples per stratum; permutation, orders;
gtg, most orders; owen, antithetic pairs; exact and leave-one-out need none."""
