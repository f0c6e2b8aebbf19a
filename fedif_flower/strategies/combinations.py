"""Which settings go together: what a strategy, as it is set, cannot do is refused by name."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError, require
from fedif_flower.local_methods import LocalMethod
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.messages.statistics import is_statistic
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.local_guide import LocalGuide
from fedif_flower.strategies.local_vector import LocalVector
from fedif_flower.strategies.setup import Setup

# Of a trained parameter in a masked round: its reply, 8 bytes each, must not be taken for a flood.
_LEAST_BYTES = 4


class CombinedStrategy(RunningStrategy, Protocol):
    """What is looked at of a strategy; ``ScreenedStrategy`` says what each part means."""

    setup: Setup
    callbacks: list[Callback]
    local_guide: LocalGuide
    local_vector: LocalVector
    can_mask: bool
    keep_arrays: bool


def require_late(strategy: CombinedStrategy, grid: Grid) -> None:
    """Raise ConfigError where late replies cannot come, or cannot be used."""
    late, obstacle = strategy.setup.pace.late_rounds, ""
    if not (isinstance(grid, ScreenedGrid) and grid.keeps_late):
        obstacle = "in a simulation, whose replies come in their round or never"
    elif strategy.keep_arrays:
        obstacle = f"with {type(strategy).__name__}, which takes whole models over"
    elif strategy.setup.masking is not None:
        obstacle = "with masked updates"
    elif strategy.local_vector.travels:
        obstacle = "with a local method that sends a vector beside the model"
    elif strategy.local_guide.guides:
        obstacle = "with a local method whose clients report in the round that they are asked"
    require(not obstacle, "late_rounds", late, f"0 {obstacle}")


def require_coefficients(strategy: CombinedStrategy) -> None:
    """Raise ConfigError where a local method needs coefficients and there are none."""
    require(
        (strategy.combines_updates and not strategy.stages.make_groups)
        or not strategy.local_guide.weighs,
        "local_method",
        strategy.setup.local_method,
        f"with {type(strategy).__name__}, which gives no client a coefficient: one that changes no "
        "weights",
    )


def require_maskable(strategy: CombinedStrategy, initial_arrays: ArrayRecord) -> None:
    """Raise ConfigError where updates, or more than parameters, would have to be seen."""
    name = type(strategy).__name__
    obstacle = "" if strategy.can_mask else f"{name} weighs by the updates themselves"
    obstacle = obstacle or strategy.stages.needs_sight()
    for callback in strategy.callbacks:
        obstacle = obstacle or callback.needs_sight(strategy)
    method = type(strategy.setup.local_method)
    if method is not LocalMethod:
        obstacle = obstacle or f"members train by SGD alone, not by {method.__name__}"
    for key, array in initial_arrays.items():
        if is_statistic(key):
            obstacle = obstacle or f"{key!r} is a statistic, which no mask covers"
        elif array.dtype.startswith("float") and np.dtype(array.dtype).itemsize < _LEAST_BYTES:
            obstacle = obstacle or f"{key!r} is of {array.dtype}: masked replies need float32"
    if obstacle:
        raise ConfigError(f"masking: {obstacle}")
