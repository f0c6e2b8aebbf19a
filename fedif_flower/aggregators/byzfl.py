"""ByzFL's aggregators, by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.round import RoundUpdates
from fedif_flower.sections import require_settings
from fedif_flower.settings import MaliciousFraction

PREFIX = "byzfl:"
_Aggregator = Callable[[Tensor], Tensor]


class ByzFL:
    """Move the model by what one of ByzFL's aggregators makes of the round's updates.

    Its parameters are ByzFL's defaults but f, the malicious updates that it expects.

    Parameters
    ----------
    rule : str
        An aggregator's name, pre-aggregators before it: ``"CenteredClipping"``,
        ``"NNM+GeometricMedian"``, ``"Clipping+NNM+TrMean"``.
    malicious_fraction : float
        Assumed share of malicious clients, in [0, 1]; f is that share of the round, but always less
        than half of it.

    Raises
    ------
    ConfigError
        If ByzFL is not installed, or has no such rule.
    """

    def __init__(self, rule: str, malicious_fraction: MaliciousFraction = 0.2) -> None:
        require_settings(ByzFL, {"malicious_fraction": malicious_fraction})
        self.rule = rule
        self.malicious_fraction = malicious_fraction
        self._steps = _named(rule)

    def __repr__(self) -> str:
        """Name the rule and its setting."""
        return f"ByzFL({self.rule!r}, malicious_fraction={self.malicious_fraction:g})"

    def __call__(self, updates: RoundUpdates) -> Tensor:
        """Return the rule's vector ``[d]``."""
        m, vectors = updates.num_clients, updates.client_updates
        num_malicious = min(round(self.malicious_fraction * m), (m - 1) // 2)
        try:
            for kind in self._steps:
                vectors = torch.as_tensor(_built(kind, num_malicious)(vectors))
        except (ValueError, ZeroDivisionError) as error:
            raise ValuationError(f"ByzFL's {self.rule} on {m} updates: {error}") from error
        return vectors.to(updates.client_updates)


def _named(rule: str) -> list[type]:
    """Return ByzFL's classes of a rule, in the order in which they are applied."""
    try:
        aggregators = import_module("byzfl.aggregators.aggregators")
        preaggregators = import_module("byzfl.aggregators.preaggregators")
    except ImportError as error:
        raise ConfigError(
            f"strategy = {PREFIX + rule!r} needs ByzFL ({error}): pip install 'fedif-flower[byzfl]'"
        ) from error
    *before, last = rule.split("+")
    found = [_class(preaggregators, name, rule) for name in before]
    return [*found, _class(aggregators, last, rule)]


def _class(module: Any, name: str, rule: str) -> type:
    known = {
        key: kind
        for key, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__
    }
    if name not in known:
        raise ConfigError(
            f"strategy = {PREFIX + rule!r}: ByzFL has no {name!r} there; it has {', '.join(known)}"
        )
    return known[name]


def _built(kind: type, num_malicious: int) -> _Aggregator:
    """Return an aggregator with ByzFL's own parameters, and f where it has one."""
    takes = inspect.signature(kind).parameters
    rule: _Aggregator = kind(**({"f": num_malicious} if "f" in takes else {}))
    return rule
