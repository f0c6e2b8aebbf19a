"""Shapley values of a round's clients: estimators over one utility type.

A :data:`Utility` maps coalitions, rows of a bool mask ``[c, m]``, to numbers ``[c]``. Every
estimator returns a :class:`ShapleyEstimate` and asks for its coalitions in batches as large as
its definition allows. :data:`ESTIMATORS` has them all by name, with one signature.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def _exact(
    utility: Utility,
    num_clients: int,
    *,
    num_samples: int,  # noqa: ARG001
    generator: Generator,  # noqa: ARG001
) -> ShapleyEstimate:
    return exact_shapley(utility, num_clients)


def _leave_one_out(
    utility: Utility,
    num_clients: int,
    *,
    num_samples: int,  # noqa: ARG001
    generator: Generator,  # noqa: ARG001
) -> ShapleyEstimate:
    return leave_one_out(utility, num_clients)


def _permutation(
    utility: Utility, num_clients: int, *, num_samples: int, generator: Generator
) -> ShapleyEstimate:
    return permutation_shapley(
        utility, num_clients, num_permutations=num_samples, generator=generator
    )


def _gtg(
    utility: Utility, num_clients: int, *, num_samples: int, generator: Generator
) -> ShapleyEstimate:
    return gtg_shapley(utility, num_clients, max_permutations=num_samples, generator=generator)


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        "complementary": complementary_shapley,
        "exact": _exact,
        "gtg": _gtg,
        "leave-one-out": _leave_one_out,
        "owen": owen_shapley,
        "permutation": _permutation,
    }
)
"""Estimators by name. ``num_samples``: complementary, samples per stratum; permutation, orders;
gtg, most orders; owen, antithetic pairs; exact and leave-one-out need none."""
