"""What somebody remembered after a run's last two rounds, from which a checkpoint takes one."""

from __future__ import annotations

from typing import Generic, TypeVar

_T = TypeVar("_T")


class LastRounds(Generic[_T]):
    """Memories of the last two rounds.

    A run that is interrupted within a round is saved as it was after the one before.
    """

    def __init__(self) -> None:
        self._by_round: dict[int, _T] = {}

    def restore(self, server_round: int, memory: _T) -> None:
        """Have the memory of one round alone, from which a run goes on."""
        self._by_round = {server_round: memory}

    def add(self, server_round: int, memory: _T) -> None:
        """Add a round's memory, and drop all but the one before it."""
        one_before = list(self._by_round.items())[-1:]
        self._by_round = {**dict(one_before), server_round: memory}

    def latest(self, last_round: int) -> _T | None:
        """Return the latest memory that is of no later round than ``last_round``, if any."""
        for server_round, memory in reversed(self._by_round.items()):
            if server_round <= last_round:
                return memory
        return None

    def all(self) -> list[_T]:
        """Return every memory, the earlier one first."""
        return list(self._by_round.values())
