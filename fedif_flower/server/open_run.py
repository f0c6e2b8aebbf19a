"""A run that goes on, whoever goes through its rounds: our own loop, or somebody else's."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedif_flower.messages.screened_grid import believable, screened, unguessable

logger = logging.getLogger(__name__)
ENDS_RUNS = "_fedif_ends_runs"  # The mark of a `start` that does.


@dataclass
class OpenRun:
    """A run that has begun and not ended.

    Attributes
    ----------
    loops_grid, grid : Grid
        The way to the clients as its loop has it, and the same with replies that are screened.
    is_own : bool
        Whether :meth:`~fedif_flower.server.run.RunningStrategy.start` goes through its rounds;
        else another loop does.
    is_over : bool
        Whether a callback has ended it, though its loop goes on.
    server_round : int
        The last round that began; 0 before the first.
    last_combined, last_examined : int
        The last round whose replies were combined, and after which callbacks looked at the model;
        -1: they have not looked at the first one.
    loop_round : int
        What its loop calls the last round that began.
    round_offset : int
        By how much ``server_round`` is larger: what is started again goes on counting.
    noise_for : int
        Of how many members each noise hides that is added to the round's model; 0: none is.
    trained, evaluated : list of Message
        What was sent to clients by a grid that screens no reply.
    outer : BaseException, optional
        What was being handled as it began: another one ends it.
    """

    loops_grid: Grid
    grid: Grid
    is_own: bool = False
    is_over: bool = False
    server_round: int = 0
    last_combined: int = 0
    last_examined: int = 0
    loop_round: int = 0
    round_offset: int = 0
    noise_for: int = 0
    trained: list[Message] = field(default_factory=list)
    evaluated: list[Message] = field(default_factory=list)
    outer: BaseException | None = field(default_factory=sys.exception)

    @property
    def screens(self) -> bool:
        """Whether the loop's grid screens replies itself."""
        return self.grid is self.loops_grid

    @property
    def has_a_model_to_show(self) -> bool:
        """Whether callbacks have yet to look at the model that the last round led to."""
        return not self.is_over and self.last_examined < self.last_combined

    def give_secret_ids(self, messages: list[Message]) -> list[Message]:
        """Give messages ids by which their replies are told, and return them.

        Where the loop's grid does that, they stay as they are, and none is returned.
        """
        if self.screens:
            return []
        return unguessable(messages)

    def reach_by(self, grid: Grid) -> Grid:
        """Return a loop's grid with replies that are screened."""
        if grid is not self.loops_grid:
            self.loops_grid = grid
            self.grid = screened(grid)
        return self.grid

    def begin_round(self, loop_round: int, completed_rounds: int) -> None:
        """Take in what its loop calls the round that begins."""
        is_first = self.server_round == 0
        is_repeated = loop_round == self.loop_round
        if is_first:
            self.round_offset = max(completed_rounds + 1 - loop_round, 0)
        elif is_repeated and self.last_combined == self.server_round:
            self.round_offset += 1  # The same number once more, for another round.
        self.loop_round = loop_round
        self.server_round = loop_round + self.round_offset


def with_an_end(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``start`` of a subclass's own, after which the run has ended for callbacks too.

    Its rounds go over a grid on which no reply is believed, as those of
    :meth:`~fedif_flower.server.run.RunningStrategy.start` do.
    """

    @wraps(start)
    def start_and_end(strategy: Any, *args: Any, **kwargs: Any) -> Any:
        strategy.end()
        is_nested = strategy._ends_by_itself
        strategy._ends_by_itself = True
        args = tuple(_screen_a_grid(value) for value in args)
        kwargs = {name: _screen_a_grid(value) for name, value in kwargs.items()}
        try:
            result = start(strategy, *args, **kwargs)
        finally:
            strategy._ends_by_itself = is_nested
            strategy.end()
        if isinstance(result, Result) and hasattr(strategy.model, "record"):
            result.arrays = strategy.model.ended_with(result.arrays)
        return result

    setattr(start_and_end, ENDS_RUNS, True)
    return start_and_end


def _screen_a_grid(value: Any) -> Any:
    """Return a grid with replies that are screened, and any other value as it is."""
    return screened(value) if isinstance(value, Grid) else value


def replies_to(sent: Sequence[Message], replies: Iterable[Message]) -> Iterable[Message]:
    """Return the replies to messages that were sent by a grid that does not screen them.

    Parameters
    ----------
    sent : sequence of Message
        What was sent; empty: the grid itself says what is a reply.
    replies : iterable of Message
        What it returned.
    """
    if not sent:
        return replies
    if not any(message.metadata.message_id for message in sent):
        logger.warning(
            "other messages were sent than the strategy's: a reply counts for the node that it "
            "says it comes from"
        )
        return replies
    return believable(replies, sent)
