"""Rounds whose updates are summed as they come: three vectors in memory, however many clients.

``aggregation="stacked"`` keeps a round's updates as ``[m, d]``; ``"streaming"`` sums them as they
come; ``"auto"`` sums them where they would take more than a quarter of the free memory, and the
strategy, as it is set, can do without them. The model is the same up to rounding, whose last bits
depend on the order in which replies come.

A rule can stream where its weights are linear in what is known when a reply arrives. It says so by
``stream_rule``; the weights themselves come from the rule's own ``weigh``, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import psutil
import torch
from torch import Tensor

from fedif_flower.aggregators.streaming import StreamedSums
from fedif_flower.errors import ConfigError, require
from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.round import RoundUpdates

AggregationMode = Literal["stacked", "streaming", "auto"]
MODES: tuple[str, ...] = get_args(AggregationMode)

# With "auto", the updates of a round may take this share of the memory that is free.
SHARE_OF_MEMORY = 0.25


class Noted(NamedTuple):
    """What a rule notes of an update when it arrives.

    ``coefficients`` are those of :class:`~fedif_flower.aggregators.streaming.StreamedSums`;
    ``notes`` what the rule wants to find in ``RoundUpdates.notes`` when it weighs the round.
    """

    coefficients: Sequence[float]
    notes: Sequence[float] = ()


StreamRule = Callable[[AcceptedReply, Tensor], Noted]
"""Takes a reply and its update ``[d]``, which is overwritten afterwards."""


class StreamedRound:
    """The sums of a round's updates, and what its rule noted of each.

    ``begin`` returns the rule; it is called with the first update.
    """

    def __init__(self, begin: Callable[[], StreamRule]) -> None:
        self._begin = begin
        self._rule: StreamRule | None = None
        self._sums = StreamedSums()
        self._notes: list[Sequence[float]] = []
        self._places: dict[int, int] = {}
        self._error: Exception | None = None

    def __len__(self) -> int:
        """Return the number of updates so far."""
        return len(self._notes)

    def take(self, reply: AcceptedReply, update: Tensor) -> None:
        """Add a reply's update ``[d]``; :meth:`summed` raises what the rule raises here."""
        if self._error is not None:
            return
        try:
            self._rule = self._rule or self._begin()
            noted = self._rule(reply, update)
            self._sums.add(update, noted.coefficients)
        except Exception as error:  # The model's or the rule's: no client is to blame.
            self._error = error
            return
        self._places[reply.node.node_id] = len(self)
        self._notes.append(noted.notes)

    def summed(self, updates: RoundUpdates, accepted: Sequence[AcceptedReply]) -> RoundUpdates:
        """Return the round's updates with their sums and notes, in the order of ``accepted``."""
        if self._error is not None:
            raise self._error
        places = [self._places[reply.node.node_id] for reply in accepted]

        def combined(weights: Tensor) -> Tensor:
            arranged = torch.empty_like(weights)
            arranged[places] = weights
            return self._sums.combined(arranged)

        notes = torch.tensor([self._notes[place] for place in places], dtype=torch.float64)
        return replace(updates, summed=combined, notes=notes)


def check_mode(mode: AggregationMode, obstacle: str) -> None:
    """Raise ConfigError if streaming is asked for where something needs all updates at once."""
    require(mode in MODES, "aggregation", mode, ", ".join(MODES))
    if mode == "streaming" and obstacle:
        raise ConfigError(f"aggregation = 'streaming': {obstacle}")


def streams(mode: AggregationMode, num_bytes: int, obstacle: str) -> bool:
    """Tell whether a round whose updates take so many bytes is summed as it comes."""
    if mode != "auto":
        return mode == "streaming"
    return num_bytes > SHARE_OF_MEMORY * psutil.virtual_memory().available and not obstacle
