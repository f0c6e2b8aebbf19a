"""Federated learning on Flower with clients that cannot be trusted, and what each contributed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        InfluenceDescent,
        Krum,
        LeaveOneOut,
        SFedAvg,
        ShapFed,
    )
    from fedif_flower.strategies.attribution import PathAttribution
    from fedif_flower.valuation import Validation, round_influence
    from fedif_flower.valuation.ledger import ContributionLedger, min_max
    from fedif_flower.valuation.path import path_attribution

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
    "InfluenceDescent",
    "Krum",
    "LeaveOneOut",
    "PathAttribution",
    "SFedAvg",
    "ShapFed",
    "Validation",
    "min_max",
    "path_attribution",
    "round_influence",
]

_ROOMS = (
    *("strategies", "strategies.attribution"),
    *("valuation", "valuation.ledger", "valuation.path"),
)


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for: PyTorch and Flower take seconds."""
    if name in __all__:
        for room in _ROOMS:
            module = import_module(f"{__name__}.{room}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
