"""Which settings go together: what a strategy, as it is set, cannot do is refused by name."""

from __future__ import annotations

from typing import Protocol

from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError, require
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.strategies.callbacks import RunningStrategy
from fedif_flower.strategies.local_part import LocalPart
from fedif_flower.strategies.setup import Setup


class CombinedStrategy(RunningStrategy, Protocol):
    """What is looked at of a strategy; ``ScreenedStrategy`` says what each part means."""

    setup: Setup
    local: LocalPart
    keep_arrays: bool
    takes_groups: bool


def require_no_groups(strategy: CombinedStrategy) -> None:
    """Raise ConfigError where a stage makes groups of clients that have to be known one by one."""
    if strategy.stages.make_groups and not strategy.takes_groups:
        raise ConfigError(
            f"stages = {strategy.stages}: {type(strategy).__name__} weighs each client by itself; "
            "groups are for robust rules that remember no client, such as RobustRule(Krum())"
        )


def require_late(strategy: CombinedStrategy, grid: Grid) -> None:
    """Raise ConfigError where late replies cannot come, or cannot be used."""
    late, obstacle = strategy.setup.pace.late_rounds, ""
    if not (isinstance(grid, ScreenedGrid) and grid.keeps_late):
        obstacle = "in a simulation, whose replies come in their round or never"
    elif strategy.keep_arrays:
        obstacle = f"with {type(strategy).__name__}, which takes whole models over"
    elif strategy.local.has_vector:
        obstacle = "with a local method that sends a vector beside the model"
    elif strategy.local.guides:
        obstacle = "with a local method whose clients report in the round that they are asked"
    require(not obstacle, "late_rounds", late, f"0 {obstacle}")


def require_coefficients(strategy: CombinedStrategy) -> None:
    """Raise ConfigError where a local method needs coefficients and there are none."""
    require(
        (strategy.combines_updates and not strategy.stages.make_groups)
        or not strategy.local.weighs,
        "local_method",
        strategy.setup.local_method,
        f"with {type(strategy).__name__}, which gives no client a coefficient: one that changes no "
        "weights",
    )
