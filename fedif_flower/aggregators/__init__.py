"""Robust rules: from the clients' updates ``[m, d]`` to weights ``[m]`` or a step ``[d]``."""

from fedif_flower.aggregators.align_ins import AlignIns
from fedif_flower.aggregators.centred_clipping import CentredClipping
from fedif_flower.aggregators.deep_sight import DeepSight
from fedif_flower.aggregators.dnc import DnC
from fedif_flower.aggregators.fedadp import FedAdp
from fedif_flower.aggregators.flame import Flame
from fedif_flower.aggregators.fltrust import fltrust_coefficients
from fedif_flower.aggregators.fools_gold import FoolsGold
from fedif_flower.aggregators.krum import Krum
from fedif_flower.aggregators.median import Median
from fedif_flower.aggregators.rfa import RFA
from fedif_flower.aggregators.sign_guard import SignGuard
from fedif_flower.aggregators.trimmed_mean import TrimmedMean

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
    "Median",
    "SignGuard",
    "TrimmedMean",
    "fltrust_coefficients",
]
