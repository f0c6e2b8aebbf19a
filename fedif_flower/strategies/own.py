"""Strategies that other packages bring: their classes, and what a run gives to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flwr.serverapp.strategy import FedAvg

from fedif_flower.errors import ConfigError
from fedif_flower.registry import call_with
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.screened import ScreenedStrategy

if TYPE_CHECKING:
    from fedif_flower.strategies.registry import StrategyParts

_OFFERED = ("validation", "model", "task", "training", "num_clients")


def own_strategy(name: str, found: Any) -> Callable[[StrategyParts], ScreenedStrategy]:
    """Return what builds a strategy of a package's own.

    A :class:`ScreenedStrategy` gets the run's settings, and those of ``validation``, ``model``,
    ``task``, ``training`` and ``num_clients`` that its constructor names. A strategy of Flower's
    is wrapped in a :class:`FlowerRule`. A function gets the StrategyParts.
    """

    def build(parts: StrategyParts) -> ScreenedStrategy:
        made: object
        if isinstance(found, type) and issubclass(found, ScreenedStrategy):
            offered = {key: getattr(parts, key) for key in _OFFERED}
            made = call_with(f"strategy {name!r}", found, offered, parts.base)
        elif isinstance(found, type) and issubclass(found, FedAvg):
            made = FlowerRule(found(), **parts.base)
        else:
            made = found(parts) if callable(found) else found
        if not isinstance(made, ScreenedStrategy):
            raise ConfigError(
                f"strategy = {name!r} is of type {type(made).__name__}; allowed: a subclass of "
                "fedif_flower.strategies.ScreenedStrategy, or a function (parts) that returns one"
            )
        return made

    return build
