"""Aggregators: from the clients' updates ``[m, d]`` to coefficients ``[m]``. Pure maths."""

from fedif_flower.aggregators.align_ins import align_ins_coefficients
from fedif_flower.aggregators.centred_clipping import centred_clipping
from fedif_flower.aggregators.clipping import LengthMemory, clipping_factors
from fedif_flower.aggregators.coordinates import coordinate_median, trimmed_mean
from fedif_flower.aggregators.dnc import dnc_weights
from fedif_flower.aggregators.fedadp import FedAdp
from fedif_flower.aggregators.flame import flame_coefficients
from fedif_flower.aggregators.fltrust import TrustedCoefficients, fltrust_coefficients
from fedif_flower.aggregators.geometric_median import geometric_median_weights
from fedif_flower.aggregators.krum import krum_scores, krum_weights, select_lowest
from fedif_flower.aggregators.neighbour_mixing import neighbour_mixing

__all__ = [
    "FedAdp",
    "LengthMemory",
    "TrustedCoefficients",
    "align_ins_coefficients",
    "centred_clipping",
    "clipping_factors",
    "coordinate_median",
    "dnc_weights",
    "flame_coefficients",
    "fltrust_coefficients",
    "geometric_median_weights",
    "krum_scores",
    "krum_weights",
    "neighbour_mixing",
    "select_lowest",
    "trimmed_mean",
]
