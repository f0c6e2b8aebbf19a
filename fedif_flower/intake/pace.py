"""How long a round waits for replies, and for how long a reply may take to count."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated

from flwr.serverapp import Grid

from fedif_flower.arithmetic import share_of
from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ConfigError, require
from fedif_flower.messages.polling_grid import Closing
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.settings import Setting


def inverse_root(rounds: int) -> float:
    r"""Return :math:`1 / \sqrt{1 + s}`, what FedBuff counts an update of s rounds ago for."""
    return 1.0 / math.sqrt(1.0 + rounds)


@dataclass(frozen=True)
class Pace(CheckedFields):
    """When a round closes, and for how long late replies count.

    A late reply enters the round in which it comes. It is screened against the model that it was
    trained on, and its update is multiplied by ``staleness`` of the rounds between: scores, steps
    and contributions are those of what it became. A member is not asked anew while its reply is
    waited for.

    Parameters
    ----------
    quorum : float
        A round closes with this many usable replies: from 1 on a number, below 1 a share of the
        members that are asked or still at work; 0: all that are asked are waited for.
    grace : float
        Seconds for which a round stays open once it has its quorum, >= 0.
    ask_more : float
        How many times as many members are drawn as otherwise would be, rounded up, >= 1.
    late_rounds : int
        A reply counts if it comes at most this many rounds late; 0: what is late is lost.
    staleness : callable
        Takes rounds of delay >= 1, returns a factor in [0, 1].

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
        """Raise ConfigError for what is out of range."""
        super().__post_init__()
        whole = self.quorum < 1 or self.quorum == int(self.quorum)
        require(whole, "quorum", self.quorum, "0, a share below 1, or a whole number")
        require(bool(self.quorum or not self.grace), "grace", self.grace, "0 without a quorum")

    def require_in(self, grid: Grid) -> None:
        """Raise ConfigError where a round cannot close as it should: the grid's loop waits."""
        words = "0 where another loop than the strategy's own start sends the messages"
        require(isinstance(grid, ScreenedGrid) or not self.quorum, "quorum", self.quorum, words)

    def require_within(self, timeout: float | None) -> None:
        """Raise ConfigError where a round's time is over before its grace: no quorum closes it."""
        is_within = not self.grace or timeout is None or self.grace < timeout
        require(is_within, "grace", self.grace, f"less than timeout = {timeout}")

    def num_drawn(self, num_nodes: int, fraction: float, least: int) -> int:
        """Return how many members a round draws of so many nodes, where all of them are free.

        They are at least ``ask_more`` times as many as without it, rounded up: whatever the
        rounding of the share, or ``least``, has made of these.

        Parameters
        ----------
        num_nodes : int
            Nodes online.
        fraction : float
            The share that is drawn, if no more are asked.
        least : int
            So many are drawn at least, where there are as many.
        """
        fewest = max(least, 1)
        drawn = share_of(round(self.ask_more * num_nodes), fraction, fewest)
        without_more = share_of(num_nodes, fraction, fewest)
        # 1.1 * 10 is 11.000...01: eleven are meant.
        as_many_times = math.ceil(self.ask_more * without_more - 1e-9)
        return min(max(drawn, as_many_times), num_nodes)

    def fewest_replies(self, at_work: int) -> int:
        """Return with how few usable replies a round closes in time, of so many members at work."""
        quorum = self._quorum_of(at_work)
        if not quorum:
            return at_work
        return quorum

    def most_replies(self, num_drawn: int, num_nodes: int) -> int:
        """Return how many replies a round takes in at most, with so many drawn of so many nodes."""
        at_work = num_drawn
        if self.late_rounds:  # All others may be at work for earlier rounds.
            at_work = num_nodes
        if self.grace:
            return at_work
        return self.fewest_replies(at_work)

    def closing(self, num_asked: int, awaited: Collection[int]) -> Closing:
        """Return when a round closes in which so many members are asked, beside those at work."""
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
        """Return how many replies the quorum is, of so many members; 0: there is none."""
        if self.quorum >= 1:
            return min(int(self.quorum), at_work)
        # 0.07 * 100 is 7.000...01: the share is meant, not its rounding error.
        return math.ceil(self.quorum * at_work - 1e-9)

    def require_all_drawn(self) -> None:
        """Raise ConfigError where other clients take part than were drawn with their chances."""
        if self.quorum or self.late_rounds or self.ask_more != 1:
            raise ConfigError(
                "sampling = 'independent'; allowed: 'fixed-size' where rounds close with a quorum, "
                "ask more clients or take late replies: the chance with which a client counts is "
                "not known"
            )


SYNCHRONOUS = Pace()
"""All that are asked are waited for."""
