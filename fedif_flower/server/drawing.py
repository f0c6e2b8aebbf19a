"""How many members a round draws, and whether there can ever be as many as it needs."""

from __future__ import annotations

import math
from typing import Protocol

from flwr.serverapp import Grid

from fedif_flower.errors import require
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

    def require_updates(self, count: int, allowed: str) -> int:
        """Raise ConfigError where so many updates are too few for a setting."""
        ...


def number_drawn(strategy: Drawing, num_online: int) -> int:
    """Return how many are drawn of the nodes online, where so many may be."""
    pace = strategy.setup.pace
    return pace.num_drawn(num_online, strategy.fraction_train, strategy.min_train_nodes)


def require_nodes(strategy: Drawing, grid: Grid, *, draws_by_itself: bool) -> None:
    """Raise ConfigError where a grid can never have the nodes, or rounds the replies, they need.

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
    _require_enough_replies(strategy, most_nodes(grid), draws_by_itself=draws_by_itself)


def _require_enough_replies(strategy: Drawing, most: float, *, draws_by_itself: bool) -> None:
    """Raise ConfigError where rounds close with fewer replies than they need, of ``most`` nodes."""
    pace = strategy.setup.pace
    if math.isinf(most):
        # Nobody knows how many will be at work, but a round closes with a quorum that is a number.
        at_work = int(pace.quorum)
        allowed = ""
    else:
        at_work, allowed = _most_at_work(strategy, int(most), draws_by_itself=draws_by_itself)
    if not at_work:
        return
    replies = pace.fewest_replies(at_work)
    if pace.quorum:
        allowed = f"at most {replies}, with which a round closes by quorum = {pace.quorum:g}"
    needed = strategy.setup.min_valid_replies
    require(needed <= replies, "min_valid_replies", needed, allowed)
    strategy.require_updates(replies, allowed)


def _most_at_work(strategy: Drawing, most: int, *, draws_by_itself: bool) -> tuple[int, str]:
    """Return of how many members a round can await replies, and why of no more."""
    pace = strategy.setup.pace
    # What comes late may make up for a draw that is too small; a quorum counts it, too.
    if draws_by_itself or (pace.late_rounds and not pace.quorum):
        return most, f"at most {most}, as many as there can be nodes"
    drawn = number_drawn(strategy, most)
    share = f"fraction_train = {strategy.fraction_train:g}"
    if pace.ask_more != 1:
        share += f", ask_more = {pace.ask_more:g}"
    return drawn, (
        f"at most {drawn}, as many as {share} and "
        f"min_train_nodes = {strategy.min_train_nodes} draw of {most} nodes"
    )
