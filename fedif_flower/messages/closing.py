"""When a round closes: with so many usable replies and some time more, or when its time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Closing:
    r"""Says of one round until when replies are waited for.

    With k usable replies at time :math:`\tau` after the round began, it closes at
    :math:`\tau + s`. A reply is usable once it was screened: nobody closes a round
    by sending nonsense early.

    Parameters
    ----------
    quorum : int, optional
        k >= 1; ``None``: all that were asked are waited for.
    grace : float
        s >= 0, in seconds.
    awaited : frozenset of int
        Nodes asked in earlier rounds whose replies still count if they come now.
    keeps : bool
        Whether replies that are missing in the end count in later rounds.
    """

    quorum: int | None = None
    grace: float = 0.0
    awaited: frozenset[int] = frozenset()
    keeps: bool = False
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    usable: int = field(default=0, init=False)
    deadline: float | None = field(default=None, init=False)

    def begin(self, timeout: float | None, clock: Callable[[], float] | None = None) -> None:
        """Begin to count, by the clock of whoever waits for the replies."""
        self.clock = clock or self.clock
        self.deadline = None if timeout is None else self.clock() + timeout

    def count(self) -> None:
        """Take in that one more reply is usable."""
        self.usable += 1
        if self.usable == self.quorum:
            now = self.clock()
            close = now + self.grace
            self.deadline = close if self.deadline is None else min(close, self.deadline)

    @property
    def has_quorum(self) -> bool:
        """Whether enough replies are usable."""
        return self.quorum is not None and self.usable >= self.quorum

    @property
    def wants_late(self) -> bool:
        """Whether a round waits on though all that is missing are replies to earlier ones."""
        return not self.usable if self.quorum is None else not self.has_quorum

    def is_over(self) -> bool:
        """Tell whether nothing is waited for any more."""
        return self.deadline is not None and self.clock() >= self.deadline
