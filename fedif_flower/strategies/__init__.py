"""The strategies: each says how a round's updates are valued and weighed, one file each."""

from fedif_flower.intake.pace import Pace as Pace
from fedif_flower.server.loop import ScreenedStrategy as ScreenedStrategy
from fedif_flower.server.setup import Setup as Setup
from fedif_flower.strategies.afedsv import AFedSV as AFedSV
from fedif_flower.strategies.fedavg import FedAvg as FedAvg
from fedif_flower.strategies.fedif import FedIF as FedIF
from fedif_flower.strategies.fedprox import FedProx as FedProx
from fedif_flower.strategies.fedsv import FedSV as FedSV
from fedif_flower.strategies.fltrust import FLTrust as FLTrust
from fedif_flower.strategies.fltrust import RootTraining as RootTraining
from fedif_flower.strategies.influence_descent import DescentSettings as DescentSettings
from fedif_flower.strategies.influence_descent import InfluenceDescent as InfluenceDescent
from fedif_flower.strategies.leave_one_out import LeaveOneOut as LeaveOneOut
from fedif_flower.strategies.robust_rule import RobustRule as RobustRule
from fedif_flower.strategies.s_fedavg import SFedAvg as SFedAvg
from fedif_flower.strategies.scored import ScoredStrategy as ScoredStrategy
from fedif_flower.strategies.scored import Weighting as Weighting
from fedif_flower.strategies.shapfed import ShapFed as ShapFed
