"""Aggregators: from the clients' updates ``[m, d]`` to coefficients ``[m]``. Pure maths."""

from fedif_flower.aggregators.clipping import LengthMemory, clipping_factors
from fedif_flower.aggregators.fedadp import FedAdp
from fedif_flower.aggregators.fltrust import TrustedCoefficients, fltrust_coefficients
from fedif_flower.aggregators.geometric_median import geometric_median_weights
from fedif_flower.aggregators.krum import krum_scores, krum_weights, select_lowest

__all__ = [
    "FedAdp",
    "LengthMemory",
    "TrustedCoefficients",
    "clipping_factors",
    "fltrust_coefficients",
    "geometric_median_weights",
    "krum_scores",
    "krum_weights",
    "select_lowest",
]
