"""What a run remembers of its last rounds, so that a checkpoint can be made of one of them."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from flwr.app import ArrayRecord

from fedif_flower.server.loop import ScreenedStrategy

_T = TypeVar("_T")


class CompleteRound(NamedTuple):
    """The last complete round: its models, and the strategy's state after it.

    ``model`` is the global model. ``way_back`` is the earlier model to which the strategy returns
    if no round succeeds from ``model``; ``None``: ``model`` has proved to work.
    """

    server_round: int
    model: ArrayRecord
    way_back: ArrayRecord | None
    strategy: dict[str, Any]

    @classmethod
    def of(cls, server_round: int, strategy: ScreenedStrategy) -> CompleteRound:
        """Return the record of the round that a strategy has just completed."""
        model = strategy.model
        return cls(server_round, model.record, model.way_back, strategy.state_dict())


class LastRounds(Generic[_T]):
    """Memories of the last two rounds.

    Two are needed because a run that is interrupted within a round is saved as it was after the
    round before.
    """

    def __init__(self) -> None:
        self._by_round: dict[int, _T] = {}

    def restore(self, server_round: int, memory: _T) -> None:
        """Keep only the memory of the round from which a run is resumed."""
        self._by_round = {server_round: memory}

    def add(self, server_round: int, memory: _T) -> None:
        """Add a round's memory, and drop all earlier memories but the latest."""
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
