"""The state of a run between its first round and its last.

Its rounds are gone through by the strategy's own ``start``, or by another loop that calls Flower's
methods itself (a strategy that wraps this one, or a user's own loop).
"""

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
ENDS_RUNS = "_fedif_ends_runs"  # The attribute that marks a `start` which `with_an_end` returned.


@dataclass
class OpenRun:
    """A run that has begun and not ended.

    Attributes
    ----------
    loops_grid, grid : Grid
        The connection to the clients that the loop uses; and the same, wrapped so that replies are
        screened.
    is_strategys_loop : bool
        Whether the strategy's own :meth:`~fedif_flower.server.run.RunningStrategy.start` goes
        through the rounds; otherwise another loop does.
    is_over : bool
        Whether a callback has ended the run although the other loop goes on.
    server_round : int
        The last round that began, as this package counts; 0 before the first.
    last_combined, last_examined : int
        The last round whose replies were combined; and the last round after which callbacks looked
        at the model. ``last_examined`` is -1 if they have not looked at the initial model yet.
    loop_round : int
        The number that the other loop gives to the last round that began.
    round_offset : int
        ``server_round - loop_round``: a loop that starts again counts from 1 again, and the
        strategy goes on counting.
    noise_for : int
        The number of members for which a wrapper's noise is made (see
        :mod:`fedif_flower.server.noise`); 0 if no noise is added.
    trained, evaluated : list of Message
        The last messages that asked clients to train, and to evaluate, if the loop's grid does not
        screen replies: replies are matched with them. Otherwise empty.
    exception_at_start : BaseException, optional
        The exception that was being handled when the run began. If another one is being handled
        when it ends, an error has ended the run.
    """

    loops_grid: Grid
    grid: Grid
    is_strategys_loop: bool = False
    is_over: bool = False
    server_round: int = 0
    last_combined: int = 0
    last_examined: int = 0
    loop_round: int = 0
    round_offset: int = 0
    noise_for: int = 0
    trained: list[Message] = field(default_factory=list)
    evaluated: list[Message] = field(default_factory=list)
    exception_at_start: BaseException | None = field(default_factory=sys.exception)

    @property
    def screens(self) -> bool:
        """Whether the loop's own grid screens replies."""
        return self.grid is self.loops_grid

    @property
    def has_a_model_to_show(self) -> bool:
        """Whether callbacks have yet to look at the model that the last round led to."""
        return not self.is_over and self.last_examined < self.last_combined

    def give_secret_ids(self, messages: list[Message]) -> list[Message]:
        """Give messages random ids, so that replies can be matched with them; return them.

        If the loop's grid screens replies, it gives the ids itself: the messages stay as they are,
        and an empty list is returned.
        """
        if self.screens:
            return []
        return unguessable(messages)

    def reach_by(self, grid: Grid) -> Grid:
        """Return the loop's ``grid``, wrapped so that replies are screened."""
        if grid is not self.loops_grid:
            self.loops_grid = grid
            self.grid = screened(grid)
        return self.grid

    def begin_round(self, loop_round: int, completed_rounds: int) -> None:
        """Begin a round: set ``server_round`` from the number that the loop gives it.

        Parameters
        ----------
        loop_round : int
            The loop's own number of the round.
        completed_rounds : int
            The rounds that the strategy completed before, in this run or in earlier ones.
        """
        is_first = self.server_round == 0
        is_repeated = loop_round == self.loop_round
        if is_first:
            self.round_offset = max(completed_rounds + 1 - loop_round, 0)
        elif is_repeated and self.last_combined == self.server_round:
            # The loop uses one number for several rounds. (If the last round was not combined, the
            # loop repeats that round, which keeps its number.)
            self.round_offset += 1
        self.loop_round = loop_round
        self.server_round = loop_round + self.round_offset


def with_an_end(start: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a subclass's own ``start`` so that it ends the run, and screens replies.

    The wrapped ``start`` tells callbacks of the end of the run. Each grid among its arguments is
    replaced by one that screens replies, as in
    :meth:`~fedif_flower.server.run.RunningStrategy.start`.
    """

    @wraps(start)
    def start_and_end(strategy: Any, *args: Any, **kwargs: Any) -> Any:
        strategy.end()  # A run that another loop has left open.
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
    """Return a grid wrapped so that replies are screened, and any other value as it is."""
    return screened(value) if isinstance(value, Grid) else value


def replies_to(sent: Sequence[Message], replies: Iterable[Message]) -> Iterable[Message]:
    """Return the replies that a loop's grid returned, matched with the messages that were sent.

    Parameters
    ----------
    sent : sequence of Message
        The messages, if the grid does not screen replies; empty if it does: ``replies`` are
        returned as they are then.
    replies : iterable of Message
        What the grid returned.

    Returns
    -------
    iterable of Message
        Replies that are credited to the node that was asked (see
        :class:`~fedif_flower.messages.screened_grid.ScreenedGrid`). If the loop has sent other
        messages than the strategy's, whose ids are not known, ``replies`` as they are.
    """
    if not sent:
        return replies
    if not any(message.metadata.message_id for message in sent):
        logger.warning(
            "the loop sent messages that the strategy did not make, so replies cannot be matched "
            "with them: each reply counts for the node that it names as its sender"
        )
        return replies
    return believable(replies, sent)
