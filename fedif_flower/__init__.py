"""Federated learning on Flower with clients that cannot be trusted, and what each contributed."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

# The public names, for type checkers. At run time, ``_public_names`` below reads these lines too,
# and a name is imported when it is first used, since PyTorch and Flower take seconds to import.
if TYPE_CHECKING:
    from fedif_flower.aggregators import RFA as RFA
    from fedif_flower.aggregators import AlignIns as AlignIns
    from fedif_flower.aggregators import CentredClipping as CentredClipping
    from fedif_flower.aggregators import DeepSight as DeepSight
    from fedif_flower.aggregators import DnC as DnC
    from fedif_flower.aggregators import FedAdp as FedAdp
    from fedif_flower.aggregators import Flame as Flame
    from fedif_flower.aggregators import FoolsGold as FoolsGold
    from fedif_flower.aggregators import Krum as Krum
    from fedif_flower.aggregators import Median as Median
    from fedif_flower.aggregators import SignGuard as SignGuard
    from fedif_flower.aggregators import TrimmedMean as TrimmedMean
    from fedif_flower.apps import client_app as client_app
    from fedif_flower.apps import server_app as server_app
    from fedif_flower.attribution.callback import PathAttribution as PathAttribution
    from fedif_flower.attribution.credit import CreditBounds as CreditBounds
    from fedif_flower.attribution.path import path_attribution as path_attribution
    from fedif_flower.attribution.quarantine import Quarantine as Quarantine
    from fedif_flower.messages.models import model_arrays as model_arrays
    from fedif_flower.run.results import load as load
    from fedif_flower.run.round_progress import ShowRounds as ShowRounds
    from fedif_flower.run.writer import RunWriter as RunWriter
    from fedif_flower.strategies import AFedSV as AFedSV
    from fedif_flower.strategies import FedAvg as FedAvg
    from fedif_flower.strategies import FedIF as FedIF
    from fedif_flower.strategies import FedProx as FedProx
    from fedif_flower.strategies import FedSV as FedSV
    from fedif_flower.strategies import FLTrust as FLTrust
    from fedif_flower.strategies import InfluenceDescent as InfluenceDescent
    from fedif_flower.strategies import LeaveOneOut as LeaveOneOut
    from fedif_flower.strategies import Pace as Pace
    from fedif_flower.strategies import RobustRule as RobustRule
    from fedif_flower.strategies import ScoredStrategy as ScoredStrategy
    from fedif_flower.strategies import Setup as Setup
    from fedif_flower.strategies import SFedAvg as SFedAvg
    from fedif_flower.strategies import ShapFed as ShapFed
    from fedif_flower.tasks.data.partition import dirichlet_partition as dirichlet_partition
    from fedif_flower.tasks.task import ClientSite as ClientSite
    from fedif_flower.tasks.task import Metric as Metric
    from fedif_flower.tasks.task import Site as Site
    from fedif_flower.tasks.task import Task as Task
    from fedif_flower.valuation import Validation as Validation
    from fedif_flower.valuation import round_influence as round_influence
    from fedif_flower.valuation.examination import vet as vet
    from fedif_flower.valuation.held_out import HeldOut as HeldOut
    from fedif_flower.valuation.held_out_check import HeldOutCheck as HeldOutCheck
    from fedif_flower.valuation.ledger import ScoreLedger as ScoreLedger
    from fedif_flower.valuation.ledger import min_max as min_max
else:  # Type checkers would take a module with ``__getattr__`` to have any name.

    def __getattr__(name: str) -> object:
        """Import a public name from the module that defines it."""
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *_HOMES]


def _public_names() -> dict[str, str]:
    """Return the public names of the ``TYPE_CHECKING`` block, each with its module."""
    source = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    for_checkers = next(node for node in source.body if isinstance(node, ast.If))
    homes: dict[str, str] = {}
    for node in for_checkers.body:
        assert isinstance(node, ast.ImportFrom)
        homes |= {alias.name: str(node.module) for alias in node.names}
    return homes


_HOMES = _public_names()
if not TYPE_CHECKING:
    __all__ = sorted(_HOMES)
