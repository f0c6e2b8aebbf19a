"""Federated learning on Flower with clients that cannot be trusted, and what each contributed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedif_flower.aggregators import (
        RFA,
        AlignIns,
        CentredClipping,
        DeepSight,
        DnC,
        FedAdp,
        Flame,
        FoolsGold,
        Krum,
        Median,
        SignGuard,
        TrimmedMean,
    )
    from fedif_flower.apps import client_app, server_app
    from fedif_flower.messages.models import model_arrays
    from fedif_flower.run.results import load
    from fedif_flower.run.round_progress import ShowRounds
    from fedif_flower.run.writer import RunWriter
    from fedif_flower.strategies import (
        AFedSV,
        FedAvg,
        FedIF,
        FedProx,
        FedSV,
        FLTrust,
        InfluenceDescent,
        LeaveOneOut,
        RobustRule,
        ScoredStrategy,
        Setup,
        SFedAvg,
        ShapFed,
    )
    from fedif_flower.strategies.attribution import PathAttribution
    from fedif_flower.strategies.quarantine import Quarantine
    from fedif_flower.tasks.task import ClientSite, Metric, Site, Task
    from fedif_flower.valuation import Validation, round_influence
    from fedif_flower.valuation.credit import CreditBounds
    from fedif_flower.valuation.ledger import ScoreLedger, min_max
    from fedif_flower.valuation.path import path_attribution

__all__ = [
    "RFA",
    "AFedSV",
    "AlignIns",
    "CentredClipping",
    "ClientSite",
    "CreditBounds",
    "DeepSight",
    "DnC",
    "FLTrust",
    "FedAdp",
    "FedAvg",
    "FedIF",
    "FedProx",
    "FedSV",
    "Flame",
    "FoolsGold",
    "InfluenceDescent",
    "Krum",
    "LeaveOneOut",
    "Median",
    "Metric",
    "PathAttribution",
    "Quarantine",
    "RobustRule",
    "RunWriter",
    "SFedAvg",
    "ScoreLedger",
    "ScoredStrategy",
    "Setup",
    "ShapFed",
    "ShowRounds",
    "SignGuard",
    "Site",
    "Task",
    "TrimmedMean",
    "Validation",
    "client_app",
    "load",
    "min_max",
    "model_arrays",
    "path_attribution",
    "round_influence",
    "server_app",
]

_RULES = (
    "RFA AlignIns CentredClipping DeepSight DnC FedAdp Flame FoolsGold Krum Median SignGuard "
    "TrimmedMean"
)
_HOMES = {
    **dict.fromkeys(_RULES.split(), "aggregators"),
    **dict.fromkeys(("client_app", "server_app"), "apps"),
    **dict.fromkeys(("ClientSite", "Metric", "Site", "Task"), "tasks.task"),
    **dict.fromkeys(("Validation", "round_influence"), "valuation"),
    **dict.fromkeys(("ScoreLedger", "min_max"), "valuation.ledger"),
    "CreditBounds": "valuation.credit",
    "PathAttribution": "strategies.attribution",
    "Quarantine": "strategies.quarantine",
    "RunWriter": "run.writer",
    "ShowRounds": "run.round_progress",
    "load": "run.results",
    "model_arrays": "messages.models",
    "path_attribution": "valuation.path",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for: PyTorch and Flower take seconds."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'strategies')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
