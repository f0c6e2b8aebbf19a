"""What a server with momentum still carries of earlier rounds' updates, and who sent them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

# Of the newest step's share. Older steps whose share has faded below it are left out: ten rounds
# are kept where the running mean halves each round.
LEAST_SHARE = 1e-3


class Member(NamedTuple):
    """A client, as tables name it."""

    partition_id: int
    client_id: int


class PartCredit(NamedTuple):
    """How much of a round's updates is credited: ``kept`` [m] of each less what is ``returned``.

    That is ``returned`` [m, k] in the ``basis`` [k, d] of the global steps before that round.
    """

    kept: Tensor
    returned: Tensor
    basis: Tensor


@dataclass(frozen=True)
class Part:
    """What one round's updates are of a step.

    It is ``share * coefficients`` [m] times ``updates`` [m, d]; in the round itself, share is 1.
    """

    members: tuple[Member, ...]
    coefficients: Tensor
    updates: Tensor
    share: float = 1.0
    credit: PartCredit | None = None

    @property
    def applied(self) -> Tensor:
        """The coefficients ``[m]`` with which the updates are in the step."""
        return self.share * self.coefficients


class CarriedUpdates:
    """The rounds whose updates are in the step of the last one, the newest first.

    They take ``[m, d]`` each: ten rounds where half of the step before is carried on, 66 where nine
    tenths are.
    """

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self._parts = tuple(parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def joined(self, newest: Part, shares: Sequence[float]) -> CarriedUpdates:
        """Return the rounds in the next step.

        Parameters
        ----------
        newest : Part
            The round itself.
        shares : sequence of float
            What the rounds count for, the newest first: as many as are left.
        """
        kept = [share for share in shares if share >= LEAST_SHARE * shares[0]]
        parts = zip((newest, *self._parts), kept, strict=False)
        return CarriedUpdates([replace(part, share=share) for part, share in parts])

    def remembered(self) -> CarriedUpdates:
        """Return the same with a copy of the newest round's updates, which are lost otherwise."""
        newest, *others = self._parts
        return CarriedUpdates([replace(newest, updates=newest.updates.clone()), *others])

    def without_newest(self) -> CarriedUpdates:
        """Return what is carried after the last step was taken back."""
        return CarriedUpdates(self._parts[1:])

    def state(self) -> list[dict[str, Any]]:
        """Return everything in dicts, numbers and tensors."""
        return [
            {
                "members": [tuple(member) for member in part.members],
                "coefficients": part.coefficients,
                "updates": part.updates.cpu(),
                "share": part.share,
                "credit": part.credit and part.credit._asdict(),
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
                    credit=part["credit"] and PartCredit(**part["credit"]),
                )
                for part in state
            ]
        )
