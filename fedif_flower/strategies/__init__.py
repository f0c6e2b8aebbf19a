"""Thin Flower strategies: they translate between messages and the maths."""

from fedif_flower.strategies.afedsv import AFedSV
from fedif_flower.strategies.base import ScreenedStrategy
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.fedprox import FedProx
from fedif_flower.strategies.fedsv import FedSV
from fedif_flower.strategies.fltrust import FLTrust, RootTraining
from fedif_flower.strategies.influence_descent import DescentSettings, InfluenceDescent
from fedif_flower.strategies.leave_one_out import LeaveOneOut
from fedif_flower.strategies.pace import Pace
from fedif_flower.strategies.robust_rule import RobustRule
from fedif_flower.strategies.s_fedavg import SFedAvg
from fedif_flower.strategies.scored import ScoredStrategy, Weighting
from fedif_flower.strategies.setup import Setup
from fedif_flower.strategies.shapfed import ShapFed

__all__ = [
    "AFedSV",
    "DescentSettings",
    "FLTrust",
    "FedAvg",
    "FedIF",
    "FedProx",
    "FedSV",
    "InfluenceDescent",
    "LeaveOneOut",
    "Pace",
    "RobustRule",
    "RootTraining",
    "SFedAvg",
    "ScoredStrategy",
    "ScreenedStrategy",
    "Setup",
    "ShapFed",
    "Weighting",
]
