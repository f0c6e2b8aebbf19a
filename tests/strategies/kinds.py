"""A strategy of every kind, on any model and data."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from fedif_flower import Krum, Validation, strategies
from fedif_flower.strategies import RootTraining, ScoredStrategy, ScreenedStrategy
from fedif_flower.valuation import InfluenceValuation
from tests.strategies.lines import BASE

PUBLIC = [value for value in vars(strategies).values() if isinstance(value, type)]
STRATEGIES = [kind for kind in PUBLIC if issubclass(kind, ScreenedStrategy)]
KINDS = [kind for kind in STRATEGIES if kind is not ScreenedStrategy]  # Those that can weigh.


def needed(kind: type, model: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Return what a constructor cannot do without."""
    validation = Validation(model, *data, device="cpu")
    known = {
        "validation": InfluenceValuation(validation) if kind is ScoredStrategy else validation,
        "model": model,
        "root": RootTraining(model, *data),
        "rule": Krum(),
        "root_data": data,
    }
    return {name: known[name] for name in inspect.signature(kind).parameters if name in known}


def built(
    kind: type[ScreenedStrategy], model: nn.Module, data: tuple[Tensor, Tensor], **settings: Any
) -> ScreenedStrategy:
    """Return a strategy with what it cannot do without, where ``settings`` does not have it."""
    return kind(**BASE | needed(kind, model, data) | settings)
