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
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import psutil
import torch
from torch import Tensor

from fedif_flower.aggregators.streaming import StreamedSums
from fedif_flower.errors import ConfigError, require
from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.round import RoundUpdates
from fedif_flower.strategies.callbacks import Callback

if TYPE_CHECKING:
    from fedif_flower.strategies.screened import ScreenedStrategy

AggregationMode = Literal["stacked", "streaming", "auto"]
MODES: tuple[str, ...] = get_args(AggregationMode)

# With "auto", the updates of a round may take this share of the memory that is free.
SHARE_OF_MEMORY = 0.25


class Known(NamedTuple):
    """What is known of an update when it arrives.

    ``coefficients`` are those of :class:`~fedif_flower.aggregators.streaming.StreamedSums`;
    ``notes`` what the rule wants to find in ``RoundUpdates.notes`` when it weighs the round.
    """

    coefficients: Sequence[float]
    notes: Sequence[float] = ()


StreamRule = Callable[[AcceptedReply, Tensor], Known]
"""Takes a reply and its update ``[d]``, which is overwritten afterwards."""


class StreamedRound:
    """The sums of a round's updates, and what its rule noted of each."""

    def __init__(self, rule: Callable[[], StreamRule]) -> None:
        self._begin = rule
        self._rule: StreamRule | None = None
        self._sums = StreamedSums()
        self._notes: list[Sequence[float]] = []
        self._places: dict[int, int] = {}
        self._error: Exception | None = None

    def __len__(self) -> int:
        """Return the number of updates so far."""
        return len(self._notes)

    def take(self, reply: AcceptedReply, update: Tensor) -> None:
        """Add a reply's update ``[d]``; an error of the rule itself is kept for later."""
        if self._error is not None:
            return
        try:
            self._rule = self._rule or self._begin()
            known = self._rule(reply, update)
            self._sums.add(update, known.coefficients)
        except Exception as error:  # The model's or the rule's: no client is to blame.
            self._error = error
            return
        self._places[reply.node.node_id] = len(self)
        self._notes.append(known.notes)

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


class StreamedAggregation:
    """Lets a strategy sum a round's updates as they come; part of ``ScreenedStrategy``."""

    can_stream = False  # Whether stream_rule is there.

    def stream_rule(self, server_round: int) -> StreamRule:
        """Return what is known of each update as it arrives; for rules that ``can_stream``."""
        raise NotImplementedError(f"{type(self).__name__} needs all updates at once")

    def needs_all_updates(self) -> str:
        """Return why a rule that ``can_stream`` cannot, as it is set; empty if it can."""
        return ""


def begin_stream(
    strategy: ScreenedStrategy, server_round: int, clients: int
) -> StreamedRound | None:
    """Return what takes the updates of a round of so many clients, if they are to be summed."""
    strategy.workspace.streaming = _streams(strategy, clients)
    if not strategy.workspace.streaming:
        return None
    return StreamedRound(lambda: strategy.stream_rule(server_round))


def _obstacle(strategy: ScreenedStrategy) -> str:
    """Return why a strategy, as it is set, needs all updates at once; empty if it does not."""
    if not strategy.can_stream:
        return f"{type(strategy).__name__} weighs all updates at once"
    if reason := strategy.stages.needs_all_updates():
        return reason
    for callback in strategy.callbacks:
        if type(callback).on_step is not Callback.on_step:
            return f"{type(callback).__name__} looks at each client's update"
    return strategy.needs_all_updates()


def check_mode(strategy: ScreenedStrategy) -> None:
    """Raise ConfigError if streaming is asked of a strategy that needs all updates at once."""
    mode = strategy.aggregation
    require(mode in MODES, "aggregation", mode, ", ".join(MODES))
    reason = _obstacle(strategy) if mode == "streaming" else ""
    if reason:
        raise ConfigError(f"aggregation = 'streaming': {reason}")


def _streams(strategy: ScreenedStrategy, clients: int) -> bool:
    """Tell whether the round that was asked for is summed as it comes."""
    if strategy.aggregation != "auto":
        return strategy.aggregation == "streaming"
    layout = strategy.model.layout
    size = clients * layout.num_params * layout.dtype.itemsize
    free = psutil.virtual_memory().available
    return size > SHARE_OF_MEMORY * free and not _obstacle(strategy)
