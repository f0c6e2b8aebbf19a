"""Federated learning on Flower with clients that cannot be trusted, and what each contributed."""

from fedif_flower.strategies import (
    RFA,
    AFedSV,
    ContributionStrategy,
    FedAdp,
    FedAvg,
    FedIF,
    FedProx,
    FedSV,
    FLTrust,
    Krum,
    LeaveOneOut,
    SFedAvg,
    ShapFed,
)
from fedif_flower.valuation import Validation, round_influence
from fedif_flower.valuation.ledger import ContributionLedger, min_max

__all__ = [
    "RFA",
    "AFedSV",
    "ContributionLedger",
    "ContributionStrategy",
    "FLTrust",
    "FedAdp",
    "FedAvg",
    "FedIF",
    "FedProx",
    "FedSV",
    "Krum",
    "LeaveOneOut",
    "SFedAvg",
    "ShapFed",
    "Validation",
    "min_max",
    "round_influence",
]
