"""Robust rules: from the clients' updates ``[m, d]`` to weights ``[m]`` or a step ``[d]``."""

from fedif_flower.aggregators.align_ins import AlignIns, align_ins_coefficients
from fedif_flower.aggregators.centred_clipping import CentredClipping, centred_clipping
from fedif_flower.aggregators.clipping import LengthMemory, clipping_factors
from fedif_flower.aggregators.deep_sight import (
    DeepSight,
    deep_sight_clusters,
    deep_sight_coefficients,
    output_energies,
    probability_ratios,
    threshold_exceedings,
)
from fedif_flower.aggregators.dnc import DnC, dnc_weights
from fedif_flower.aggregators.fedadp import FedAdp
from fedif_flower.aggregators.flame import Flame, flame_coefficients
from fedif_flower.aggregators.fltrust import TrustedCoefficients, fltrust_coefficients
from fedif_flower.aggregators.fools_gold import FoolsGold, fools_gold_weights
from fedif_flower.aggregators.krum import Krum, krum_scores, krum_weights, select_lowest
from fedif_flower.aggregators.median import Median, coordinate_median
from fedif_flower.aggregators.neighbour_mixing import neighbour_mixing
from fedif_flower.aggregators.rfa import RFA, geometric_median_weights
from fedif_flower.aggregators.sign_guard import SignGuard, sign_guard_coefficients
from fedif_flower.aggregators.trimmed_mean import TrimmedMean, trimmed_mean

__all__ = [
    "RFA",
    "AlignIns",
    "CentredClipping",
    "DeepSight",
    "DnC",
    "FedAdp",
    "Flame",
    "FoolsGold",
    "Krum",
    "LengthMemory",
    "Median",
    "SignGuard",
    "TrimmedMean",
    "TrustedCoefficients",
    "align_ins_coefficients",
    "centred_clipping",
    "clipping_factors",
    "coordinate_median",
    "deep_sight_clusters",
    "deep_sight_coefficients",
    "dnc_weights",
    "flame_coefficients",
    "fltrust_coefficients",
    "fools_gold_weights",
    "geometric_median_weights",
    "krum_scores",
    "krum_weights",
    "neighbour_mixing",
    "output_energies",
    "probability_ratios",
    "select_lowest",
    "sign_guard_coefficients",
    "threshold_exceedings",
    "trimmed_mean",
]
