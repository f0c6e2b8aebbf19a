"""How long a round waits for replies, and for how many rounds a late reply still counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from numbers import Real
from typing import Annotated

from flwr.serverapp import Grid

from fedif_flower.arithmetic import share_of
from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ConfigError, require
from fedif_flower.messages.polling_grid import Closing
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.settings import Setting


def inverse_root(rounds: int) -> float:
    r"""Return :math:`1 / \sqrt{1 + s}`, FedBuff's factor for an update that is s rounds late."""
    return 1.0 / math.sqrt(1.0 + rounds)


@dataclass(frozen=True)
class Pace(CheckedFields):
    """When a round closes, and for how many rounds late replies count.

    A late reply enters the round in which it comes. It is screened against the model that it was
    trained on, and its update is multiplied by the factor ``staleness(rounds late)``. Scores, steps
    and contributions are those of the shortened update. A member is not asked again while the
    server waits for its reply.

    Parameters
    ----------
    quorum : float
        The number of usable replies with which a round closes: a number if it is >= 1, a share of
        the members asked or still at work if it is below 1. 0: the round waits for all members.
    grace : float
        Seconds, >= 0, for which a round stays open once it has its quorum.
    ask_more : float
        The factor, >= 1, by which more members are drawn than otherwise, rounded up.
    late_rounds : int
        How many rounds late a reply may be and still count, >= 0; 0: late replies are lost.
    staleness : callable
        Takes the number of rounds, >= 1, that a reply is late; returns a factor in [0, 1].

    References
    ----------
    Nguyen et al., 2022 (Federated learning with buffered asynchronous aggregation).
    """

    quorum: Annotated[
        float,
        Setting(
            "a round closes with this many usable replies: from 1 on a number, below 1 a share of "
            "the members that are asked or still at work; 0: all that are asked are waited for",
            ge=0,
        ),
    ] = 0.0
    grace: Annotated[
        float,
        Setting("seconds for which a round stays open once it has its quorum", ge=0),
    ] = 0.0
    ask_more: Annotated[
        float,
        Setting(
            "this many times as many members are asked as `fraction-train` says, rounded up", ge=1
        ),
    ] = 1.0
    late_rounds: Annotated[
        int,
        Setting(
            "a reply that comes at most this many rounds after its own still counts, less by "
            "1 / sqrt(1 + rounds); until then its member is not asked anew; 0: it is lost, but "
            'with `pace.rounds = "buffered"` it counts however late it is',
            ge=0,
        ),
    ] = 0
    staleness: Callable[[int], float] = inverse_root

    def __post_init__(self) -> None:
        """Raise ConfigError if a field is out of range."""
        super().__post_init__()
        whole = self.quorum < 1 or self.quorum == int(self.quorum)
        require(whole, "quorum", self.quorum, "0, a share below 1, or a whole number")
        require(bool(self.quorum or not self.grace), "grace", self.grace, "0 without a quorum")
        self._try_staleness()

    def _try_staleness(self) -> None:
        """Raise ConfigError if ``staleness`` is no function, or gives no factor in [0, 1]."""
        allowed = "a function that returns a factor in [0, 1] for a number of rounds"
        require(callable(self.staleness), "staleness", self.staleness, allowed)
        if not self.late_rounds:
            return
        for rounds in (1, self.late_rounds):
            factor = self.staleness(rounds)
            is_factor = isinstance(factor, Real) and 0 <= factor <= 1
            require(is_factor, f"staleness({rounds})", factor, "a number >= 0 and <= 1")

    def require_in(self, grid: Grid) -> None:
        """Raise ConfigError for a quorum in a grid that cannot close a round early.

        In another loop than the strategy's ``start``, the loop's own grid waits for all replies.
        """
        words = "0 where another loop than the strategy's own start sends the messages"
        require(isinstance(grid, ScreenedGrid) or not self.quorum, "quorum", self.quorum, words)

    def require_within(self, timeout: float | None) -> None:
        """Raise ConfigError if ``grace`` is not shorter than a round's timeout, in seconds.

        Otherwise the timeout would close every round before its quorum can.
        """
        is_within = not self.grace or timeout is None or self.grace < timeout
        require(is_within, "grace", self.grace, f"less than timeout = {timeout}")

    def num_drawn(self, num_nodes: int, fraction: float, least: int) -> int:
        """Return how many of ``num_nodes`` nodes a round draws, if all of them may be drawn.

        The number is at least ``ask_more`` times the number that would be drawn without
        ``ask_more``, rounded up. The latter is already rounded, or raised to ``least``.

        Parameters
        ----------
        num_nodes : int
            The number of nodes online.
        fraction : float
            The share of them that is drawn without ``ask_more``.
        least : int
            The smallest number to draw, if there are so many nodes.
        """
        fewest = max(least, 1)
        drawn = share_of(round(self.ask_more * num_nodes), fraction, fewest)
        without_more = share_of(num_nodes, fraction, fewest)
        # In floating point 1.1 * 50 is 55.000...01, which must not be rounded up to 56.
        as_many_times = math.ceil(self.ask_more * without_more - 1e-9)
        return min(max(drawn, as_many_times), num_nodes)

    def fewest_replies(self, at_work: int) -> int:
        """Return the smallest number of replies with which a round of ``at_work`` members closes.

        It is the quorum, or all of them without one; a round whose time is over may have fewer.
        """
        quorum = self._quorum_of(at_work)
        if not quorum:
            return at_work
        return quorum

    def most_replies(self, num_drawn: int, num_nodes: int) -> int:
        """Return the largest number of replies that a round can take in.

        Parameters
        ----------
        num_drawn : int
            The number of members that the round draws.
        num_nodes : int
            The number of nodes online.
        """
        at_work = num_drawn
        if self.late_rounds:  # All other nodes may be at work for earlier rounds.
            at_work = num_nodes
        if self.grace:
            return at_work
        return self.fewest_replies(at_work)

    def closing(self, num_asked: int, awaited: Collection[int]) -> Closing:
        """Return when a round closes.

        Parameters
        ----------
        num_asked : int
            The number of members that the round asks.
        awaited : collection of int
            The ids of the nodes asked in earlier rounds whose replies still count.
        """
        at_work = num_asked + len(awaited)
        quorum = self._quorum_of(at_work) or None
        return Closing(
            quorum,
            self.grace,
            frozenset(awaited),
            keeps=self.late_rounds > 0,
            rounds=1 + self.late_rounds,
        )

    def _quorum_of(self, at_work: int) -> int:
        """Return the quorum of ``at_work`` members as a number of replies; 0 if there is none."""
        if self.quorum >= 1:
            return min(int(self.quorum), at_work)
        # In floating point 0.07 * 100 is 7.000...01, which must not be rounded up to 8.
        return math.ceil(self.quorum * at_work - 1e-9)

    def require_all_drawn(self) -> None:
        """Raise ConfigError unless exactly the clients that are drawn take part in a round.

        Independent sampling divides weights by the probability with which a client takes part. With
        a quorum, late replies or ``ask_more`` that probability is not known.
        """
        if self.quorum or self.late_rounds or self.ask_more != 1:
            raise ConfigError(
                "sampling = 'independent'; allowed: 'fixed-size' where rounds close with a quorum, "
                "ask more clients or take late replies: the chance with which a client counts is "
                "not known"
            )


SYNCHRONOUS = Pace()
"""The default: a round waits for all members that it asks, and late replies are lost."""
