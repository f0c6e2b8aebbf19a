"""The protocol of a stage: what it may do to a round, in the order in which a round goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedif_flower.round import RoundUpdates
from fedif_flower.sections import CheckedFields
from fedif_flower.valuation.validation import Validation


class Leading(Protocol):
    """Leads on from a round's own step, as a server optimizer does."""

    def lead(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the parameters ``[d]`` that a step from ``before`` to ``after`` leads to."""

    def restart(self) -> None:
        """Forget the steps of earlier rounds."""


class Destination(NamedTuple):
    """Where a round leads: parameters ``[d]``, buffers ``[b]``, and the coefficients applied.

    ``coefficients`` [m] are what the updates of the parameters were multiplied by.
    """

    params: Tensor
    buffers: Tensor
    coefficients: Tensor


@dataclass(frozen=True)
class Proposal:
    """The step that a round's weights propose.

    Attributes
    ----------
    updates : RoundUpdates
        The round's replies, as the stages left them.
    weights : Tensor
        ``[m]``: what the strategy gave them.
    move : callable
        Takes coefficients ``[m]`` and returns the :class:`Destination` that they lead to; raises
        ValuationError where the model would not be finite.
    optimizer : Leading, optional
        Leads on from there.
    """

    updates: RoundUpdates
    weights: Tensor
    move: Callable[[Tensor], Destination]
    optimizer: Leading | None = None

    @property
    def coefficients(self) -> Tensor:
        """The weights ``[m]`` times what shortens each update."""
        return self.weights * self.updates.shortening


class Stage(CheckedFields):
    """Does nothing to a round; a stage overrides what it needs, in the order of a round.

    What a stage remembers of earlier rounds belongs into :meth:`state_dict`. Of one that is a
    dataclass, fields declared as settings are checked (see :mod:`fedif_flower.sections`).
    """

    max_length = math.inf  # Of an update, where the stage bounds it as it arrives.
    needs_lengths_alone = False  # Where it says so, updates may be masked.
    makes_groups = False  # Whether the round that is weighed is one of groups, not of clients.

    def begin(self, validation: Validation | None) -> None:
        """Be told, before the first round, what the strategy judges by, if anything."""

    def needs_sight(self) -> str:
        """Return why lengths and products of updates are not enough; empty if they are."""
        own = any(
            getattr(type(self), name) is not getattr(Stage, name)
            for name in ("arrive", "before", "choose")
        )
        blind = self.needs_lengths_alone or not own
        return "" if blind else f"{type(self).__name__} looks at each update"

    def arrive(self, update: Tensor, squared_norm: float) -> float:  # noqa: ARG002
        """Change an update ``[d]`` in place as it arrives, and return its squared norm."""
        return squared_norm

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round as the strategy is to weigh it."""
        return updates

    def choose(self, proposal: Proposal) -> Destination:
        """Return where the round leads; at most one stage of a strategy says so."""
        return proposal.move(proposal.coefficients)

    def remark(self) -> str:
        """Return what a reader should know of it when the rounds are over; empty: nothing."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
