"""Stages: they change a round's updates before it is weighed, and choose its step afterwards."""

from fedif_flower.stages.bucketing import Bucketing
from fedif_flower.stages.clip import Clip, MaxLength
from fedif_flower.stages.loss_bound import LossBound
from fedif_flower.stages.nearest_neighbours import NearestNeighbours
from fedif_flower.stages.pipeline import Stages
from fedif_flower.stages.server_optimizer import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedif_flower.stages.stage import Destination, Proposal, ServerOptimizer, Stage

__all__ = [
    "Bucketing",
    "Clip",
    "Destination",
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedYogi",
    "LossBound",
    "MaxLength",
    "NearestNeighbours",
    "Proposal",
    "ServerOptimizer",
    "Stage",
    "Stages",
]
