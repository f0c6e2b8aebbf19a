"""Thin Flower strategies: they translate between messages and the maths, and do none."""

from fedif_flower.strategies.contribution import ContributionStrategy, FedIF
from fedif_flower.strategies.fedavg import FedAvg, FedProx
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.fltrust import RFA, FedAdp, FLTrust, ShapFed
from fedif_flower.strategies.krum import Krum
from fedif_flower.strategies.s_fedavg import AFedSV, FedSV, LeaveOneOut, SFedAvg
from fedif_flower.strategies.screened import ScreenedStrategy

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
    "Krum",
    "LeaveOneOut",
    "SFedAvg",
    "ScreenedStrategy",
    "ShapFed",
]
