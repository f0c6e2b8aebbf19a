"""The updates in a step: a round's own, and those of earlier rounds that momentum carries on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from fedif_flower.attribution.credit import Credit

# Of the newest step's share. Older steps whose share has faded below it are left out: ten rounds
# are kept where the running mean halves each round.
LEAST_SHARE = 1e-3


class MemberKey(NamedTuple):
    """A client as tables name it; its lasting id alone says who it is."""

    partition_id: int
    client_id: int


@dataclass(frozen=True)
class CarriedUpdates:
    """One round's updates in a step: in its own, and in later ones that momentum carries them to.

    They are in it as ``share * coefficients`` [m] times ``updates`` [m, d]. In the round itself,
    share is 1, or a server optimizer's learning rate. A server with momentum carries the updates of
    ten rounds where half of the step before is carried on, of 66 where nine tenths are.

    ``basis`` [k, d] are the steps before it that its updates are compared with, where ``credit``
    is bounded; k may be 0.
    """

    members: tuple[MemberKey, ...]
    coefficients: Tensor
    updates: Tensor
    basis: Tensor
    credit: Credit | None = None
    share: float = 1.0

    @property
    def applied(self) -> Tensor:
        """The coefficients ``[m]`` with which the updates are in the step."""
        return self.share * self.coefficients

    def state(self) -> dict[str, Any]:
        """Return everything in dicts, tuples, numbers and tensors."""
        credit = None if self.credit is None else vars(self.credit)
        return {
            **vars(self),
            "members": tuple(tuple(member) for member in self.members),
            "updates": self.updates.cpu(),
            "credit": credit,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CarriedUpdates:
        """Return what :meth:`state` was made of."""
        members = tuple(MemberKey(*member) for member in state["members"])
        credit = None if state["credit"] is None else Credit(**state["credit"])
        return cls(**{**state, "members": members, "credit": credit})


def carry(rounds: Sequence[CarriedUpdates], shares: Sequence[float]) -> tuple[CarriedUpdates, ...]:
    """Return the rounds, the newest first, that are in a step with these shares.

    A round whose share has faded is left out, and so are the rounds before it.
    """
    least = LEAST_SHARE * shares[0]
    lasting = [share for share in shares if share >= least]
    return tuple(
        replace(updates, share=share) for updates, share in zip(rounds, lasting, strict=False)
    )
