"""What a server with momentum still carries of earlier rounds' updates, and who sent them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

# Of a coefficient: what has faded below it is no longer told apart. A running mean that halves
# every round forgets an update after ten rounds.
LEAST_SHARE = 1e-3


class Member(NamedTuple):
    """A client, as tables name it."""

    partition_id: int
    client_id: int


@dataclass(frozen=True)
class Part:
    """What one round's updates are of a step.

    It is ``share * coefficients`` [m] times ``updates`` [m, d]; in the round itself, share is 1.
    """

    members: tuple[Member, ...]
    coefficients: Tensor
    updates: Tensor
    share: float = 1.0

    @property
    def applied(self) -> Tensor:
        """The coefficients ``[m]`` with which the updates are in the step."""
        return self.share * self.coefficients


class CarriedUpdates:
    """The parts of earlier rounds in the step of the next one.

    They take ``[m, d]`` for each round that has not faded yet: ten rounds where half of the step
    before is carried on, 66 where nine tenths are.
    """

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self._parts = tuple(parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def faded(self, share: float) -> CarriedUpdates:
        """Return what is left when ``share`` of the step before is part of the next."""
        parts = (replace(part, share=part.share * share) for part in self._parts)
        return CarriedUpdates([part for part in parts if part.share >= LEAST_SHARE])

    def joined(self, part: Part) -> CarriedUpdates:
        """Return the same with one more round, whose updates are copied."""
        return CarriedUpdates([*self._parts, replace(part, updates=part.updates.clone())])

    def state(self) -> list[dict[str, Any]]:
        """Return everything in dicts, numbers and tensors."""
        return [
            {
                "members": [tuple(member) for member in part.members],
                "coefficients": part.coefficients,
                "updates": part.updates.cpu(),
                "share": part.share,
            }
            for part in self._parts
        ]

    @classmethod
    def from_state(cls, state: Sequence[Mapping[str, Any]]) -> CarriedUpdates:
        """Return what :meth:`state` was made of."""
        return cls(
            [
                Part(
                    members=tuple(Member(*member) for member in part["members"]),
                    coefficients=part["coefficients"],
                    updates=part["updates"],
                    share=float(part["share"]),
                )
                for part in state
            ]
        )
