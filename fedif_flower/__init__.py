"""Federated learning on Flower with clients that cannot be trusted, and what each contributed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# Public names by the module that has them: each is imported when it is asked for, since PyTorch
# and Flower take seconds.
_NAMES = {
    "aggregators": (
        "RFA AlignIns CentredClipping DeepSight DnC FedAdp Flame FoolsGold Krum Median SignGuard "
        "TrimmedMean"
    ),
    "apps": "client_app server_app",
    "messages.models": "model_arrays",
    "run.results": "load",
    "run.round_progress": "ShowRounds",
    "run.writer": "RunWriter",
    "strategies": (
        "AFedSV FedAvg FedIF FedProx FedSV FLTrust InfluenceDescent LeaveOneOut RobustRule "
        "ScoredStrategy Setup SFedAvg ShapFed"
    ),
    "strategies.attribution": "PathAttribution",
    "strategies.quarantine": "Quarantine",
    "tasks.task": "ClientSite Metric Site Task",
    "valuation": "Validation round_influence",
    "valuation.credit": "CreditBounds",
    "valuation.ledger": "ScoreLedger min_max",
    "valuation.path": "path_attribution",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

if TYPE_CHECKING:
    from fedif_flower.aggregators import *  # noqa: F403
    from fedif_flower.apps import client_app as client_app
    from fedif_flower.apps import server_app as server_app
    from fedif_flower.messages.models import model_arrays as model_arrays
    from fedif_flower.run.results import load as load
    from fedif_flower.run.round_progress import ShowRounds as ShowRounds
    from fedif_flower.run.writer import RunWriter as RunWriter
    from fedif_flower.strategies import *  # noqa: F403
    from fedif_flower.strategies.attribution import PathAttribution as PathAttribution
    from fedif_flower.strategies.quarantine import Quarantine as Quarantine
    from fedif_flower.tasks.task import ClientSite as ClientSite
    from fedif_flower.tasks.task import Metric as Metric
    from fedif_flower.tasks.task import Site as Site
    from fedif_flower.tasks.task import Task as Task
    from fedif_flower.valuation import Validation as Validation
    from fedif_flower.valuation import round_influence as round_influence
    from fedif_flower.valuation.credit import CreditBounds as CreditBounds
    from fedif_flower.valuation.ledger import ScoreLedger as ScoreLedger
    from fedif_flower.valuation.ledger import min_max as min_max
    from fedif_flower.valuation.path import path_attribution as path_attribution
else:
    __all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
