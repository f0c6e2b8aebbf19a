"""Whether a grid can ever have as many members as a round needs."""

from __future__ import annotations

import math
from typing import Protocol

from flwr.serverapp import Grid

from fedif_flower.errors import require
from fedif_flower.server.nodes import most_nodes, require_enough
from fedif_flower.server.setup import Setup


class DrawingStrategy(Protocol):
    """A strategy, as far as the number of members that it draws depends on it."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    setup: Setup

    @property
    def draws_by_itself(self) -> bool:
        """Whether it may draw any number of nodes, so that ``fraction_train`` does not bound it."""
        ...

    def require_updates(self, count: int, allowed: str) -> int:
        """Return how many updates are weighed if ``count`` are accepted.

        Raises
        ------
        ConfigError
            If ``count`` updates are too few for a setting; ``allowed`` completes the message.
        """
        ...


def require_nodes(strategy: DrawingStrategy, grid: Grid) -> None:
    """Raise ConfigError if the grid can never have enough nodes for the strategy's settings.

    It checks the ``min_*_nodes`` settings. It also checks that a round can get as many replies as
    ``min_valid_replies``, the stages and the rule need.

    Parameters
    ----------
    strategy : DrawingStrategy
        The strategy whose settings are checked.
    grid : Grid
        The connection to the nodes.
    """
    require_enough(grid, strategy.min_train_nodes, "min_train_nodes")
    require_enough(grid, strategy.min_available_nodes, "min_available_nodes")
    require_enough(grid, strategy.setup.min_valid_replies, "min_valid_replies")
    if strategy.fraction_evaluate:
        require_enough(grid, strategy.min_evaluate_nodes, "min_evaluate_nodes")
    _require_enough_replies(strategy, most_nodes(grid))


def _require_enough_replies(strategy: DrawingStrategy, most: float) -> None:
    """Raise ConfigError if a round can close with fewer replies than the settings need.

    ``most`` is the largest number of nodes that can be online; infinity if it is not known.
    """
    pace = strategy.setup.pace
    if math.isinf(most):
        # The number of members at work is not known. A quorum >= 1 is a number of replies, and can
        # be checked without it. A quorum < 1 is a share, which becomes 0 here: it is not checked.
        at_work = int(pace.quorum)
        allowed = ""
    else:
        at_work, allowed = _most_at_work(strategy, int(most))
    if not at_work:
        return
    replies = pace.fewest_replies(at_work)
    if pace.quorum:
        allowed = f"at most {replies}, with which a round closes by quorum = {pace.quorum:g}"
    needed = strategy.setup.min_valid_replies
    require(needed <= replies, "min_valid_replies", needed, allowed)
    strategy.require_updates(replies, allowed)


def _most_at_work(strategy: DrawingStrategy, most: int) -> tuple[int, str]:
    """Return how many members' replies a round can await at most, and the words that explain it.

    Parameters
    ----------
    strategy : DrawingStrategy
        The strategy whose settings are checked.
    most : int
        The largest number of nodes that can be online.
    """
    pace = strategy.setup.pace
    # Without a quorum, late replies may make up for a draw that is too small. With a quorum they
    # cannot, since they count towards it: the round closes the earlier for them.
    if strategy.draws_by_itself or (pace.late_rounds and not pace.quorum):
        return most, f"at most {most}, as many as there can be nodes"
    drawn = pace.num_drawn(most, strategy.fraction_train, strategy.min_train_nodes)
    settings = f"fraction_train = {strategy.fraction_train:g}"
    if pace.ask_more != 1:
        settings += f", ask_more = {pace.ask_more:g}"
    return drawn, (
        f"at most {drawn}, as many as {settings} and "
        f"min_train_nodes = {strategy.min_train_nodes} draw of {most} nodes"
    )
