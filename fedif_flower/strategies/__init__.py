"""Thin Flower strategies: they translate between messages and the maths."""

from fedif_flower.strategies.afedsv import AFedSV
from fedif_flower.strategies.contribution import ContributionStrategy
from fedif_flower.strategies.fedadp import FedAdp
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.fedprox import FedProx
from fedif_flower.strategies.fedsv import FedSV
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.fltrust import FLTrust
from fedif_flower.strategies.influence_descent import InfluenceDescent
from fedif_flower.strategies.krum import Krum
from fedif_flower.strategies.leave_one_out import LeaveOneOut
from fedif_flower.strategies.rfa import RFA
from fedif_flower.strategies.s_fedavg import SFedAvg
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.shapfed import ShapFed

__all__ = [
    "RFA",
    "AFedSV",
    "ContributionStrategy",
    "FLTrust",
    "FedAdp",
    "FedAvg",
    "FedIF",
    "FedProx",
    "FedSV",
    "FlowerRule",
    "InfluenceDescent",
    "Krum",
    "LeaveOneOut",
    "SFedAvg",
    "ScreenedStrategy",
    "ShapFed",
]
