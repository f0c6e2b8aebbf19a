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


def built(
    kind: type[ScreenedStrategy], model: nn.Module, data: tuple[Tensor, Tensor], **settings: Any
) -> ScreenedStrategy:
    """Return a strategy with what it cannot do without, where ``settings`` does not have it."""
    validation = Validation(model, *data, device="cpu")
    needed = {
        "validation": InfluenceValuation(validation) if kind is ScoredStrategy else validation,
        "model": model,
        "root": RootTraining(model, *data),
        "rule": Krum(),
    }
    own = {name: needed[name] for name in inspect.signature(kind).parameters if name in needed}
    return kind(**BASE | own | settings)
