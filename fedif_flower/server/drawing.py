"""How many members a round draws, and whether there can ever be as many as it needs."""

from __future__ import annotations

import math
from typing import Protocol

from flwr.serverapp import Grid

from fedif_flower.errors import require
from fedif_flower.round import share_of
from fedif_flower.server.nodes import most_nodes, require_enough
from fedif_flower.server.setup import Setup


class Drawing(Protocol):
    """What a strategy says of its draws."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    setup: Setup

    def require_updates(self, most: int, allowed: str) -> int:
        """Raise ConfigError where so many updates are too few for a setting."""
        ...


def number_drawn(strategy: Drawing, num_online: int) -> int:
    """Return how many are drawn of the nodes online, where so many may be."""
    out_of = round(strategy.setup.pace.ask_more * num_online)
    return share_of(out_of, strategy.fraction_train, max(strategy.min_train_nodes, 1))


def require_nodes(strategy: Drawing, grid: Grid, *, draws_by_itself: bool) -> None:
    """Raise ConfigError where a grid can never have the nodes that rounds need.

    Parameters
    ----------
    strategy : Drawing
        Draws from them.
    grid : Grid
        The way to the nodes.
    draws_by_itself : bool
        Whether a subclass draws: as many as it likes.
    """
    require_enough(grid, strategy.min_train_nodes, "min_train_nodes")
    require_enough(grid, strategy.min_available_nodes, "min_available_nodes")
    require_enough(grid, strategy.setup.min_valid_replies, "min_valid_replies")
    if strategy.fraction_evaluate:
        require_enough(grid, strategy.min_evaluate_nodes, "min_evaluate_nodes")
    most = most_nodes(grid)
    # What comes late may make up for a draw that is too small.
    may_be_more = draws_by_itself or strategy.setup.pace.late_rounds
    if not (may_be_more or math.isinf(most)):
        _require_enough_drawn(strategy, int(most))


def _require_enough_drawn(strategy: Drawing, most: int) -> None:
    """Raise ConfigError where fewer members are drawn of ``most`` than a round needs replies."""
    drawn = number_drawn(strategy, most)
    needed = strategy.setup.min_valid_replies
    allowed = (
        f"at most {drawn}, as many as fraction_train = {strategy.fraction_train:g} and "
        f"min_train_nodes = {strategy.min_train_nodes} draw of {most} nodes"
    )
    require(needed <= drawn, "min_valid_replies", needed, allowed)
    strategy.require_updates(drawn, allowed)
