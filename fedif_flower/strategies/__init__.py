"""Thin Flower strategies: they translate between messages and the maths."""

from fedif_flower.strategies.afedsv import AFedSV
from fedif_flower.strategies.align_ins import AlignIns
from fedif_flower.strategies.centred_clipping import CentredClipping
from fedif_flower.strategies.dnc import DnC
from fedif_flower.strategies.fedadp import FedAdp
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.fedprox import FedProx
from fedif_flower.strategies.fedsv import FedSV
from fedif_flower.strategies.flame import Flame
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.fltrust import FLTrust
from fedif_flower.strategies.influence_descent import InfluenceDescent
from fedif_flower.strategies.krum import Krum
from fedif_flower.strategies.leave_one_out import LeaveOneOut
from fedif_flower.strategies.median import Median
from fedif_flower.strategies.oracle import OracleExclusion
from fedif_flower.strategies.rfa import RFA
from fedif_flower.strategies.s_fedavg import SFedAvg
from fedif_flower.strategies.scored import ScoredStrategy
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.shapfed import ShapFed
from fedif_flower.strategies.trimmed_mean import TrimmedMean
from fedif_flower.strategies.vector_rule import VectorRule

__all__ = [
    "RFA",
    "AFedSV",
    "AlignIns",
    "CentredClipping",
    "DnC",
    "FLTrust",
    "FedAdp",
    "FedAvg",
    "FedIF",
    "FedProx",
    "FedSV",
    "Flame",
    "FlowerRule",
    "InfluenceDescent",
    "Krum",
    "LeaveOneOut",
    "Median",
    "OracleExclusion",
    "SFedAvg",
    "ScoredStrategy",
    "ScreenedStrategy",
    "ShapFed",
    "TrimmedMean",
    "VectorRule",
]
