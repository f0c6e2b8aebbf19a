"""The updates that make up a step: the round's own, and older ones carried on by momentum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from fedif_flower.attribution.credit import Credit

# Relative to the newest step's share. Older steps with a smaller share are left out. With a
# momentum of 0.5, where the share halves each round, this keeps ten rounds.
LEAST_SHARE = 1e-3


class MemberKey(NamedTuple):
    """A client's ids in tables; ``client_id`` alone identifies the client in all rounds."""

    partition_id: int
    client_id: int


@dataclass(frozen=True)
class CarriedUpdates:
    """One round's updates as part of a step: of the round's own step, or of a later one.

    They are in the step as ``share * coefficients`` times ``updates``. A server with momentum
    carries updates into later steps: those of ten rounds with a momentum of 0.5, and those of 66
    rounds with 0.9.

    Attributes
    ----------
    members : tuple of MemberKey
        The m clients that sent the updates.
    coefficients : Tensor
        ``[m]``: what the updates were multiplied by in their own round.
    updates : Tensor
        ``[m, d]``.
    basis : Tensor
        ``[k, d]``: an orthonormal basis of the global steps before the round, with which the
        updates are compared; k = 0 where credit is not bounded, or no step was taken before.
    credit : Credit, optional
        How much of each update is credited; ``None``: credit is not bounded.
    share : float
        What the round's step counts for in this step. In the round itself it is 1, or the server
        optimizer's learning rate.
    """

    members: tuple[MemberKey, ...]
    coefficients: Tensor
    updates: Tensor
    basis: Tensor
    credit: Credit | None = None
    share: float = 1.0

    @property
    def applied(self) -> Tensor:
        """The coefficients ``[m]`` of the updates in this step, the share included."""
        return self.share * self.coefficients

    def state(self) -> dict[str, Any]:
        """Return everything as dicts, tuples, numbers and tensors, for a checkpoint."""
        credit = None if self.credit is None else vars(self.credit)
        return {
            **vars(self),
            "members": tuple(tuple(member) for member in self.members),
            "updates": self.updates.cpu(),
            "credit": credit,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CarriedUpdates:
        """Return updates made from what :meth:`state` returned."""
        members = tuple(MemberKey(*member) for member in state["members"])
        credit = None if state["credit"] is None else Credit(**state["credit"])
        return cls(**{**state, "members": members, "credit": credit})


def carry(rounds: Sequence[CarriedUpdates], shares: Sequence[float]) -> tuple[CarriedUpdates, ...]:
    """Return the rounds that make up a step, each with its share, the newest first.

    A round whose share is below :data:`LEAST_SHARE` is left out, and so are all older rounds.

    Parameters
    ----------
    rounds : sequence of CarriedUpdates
        The updates of each round that made a step, the newest first.
    shares : sequence of float
        What each of these rounds' steps counts for in the new step, in the same order.
    """
    least = LEAST_SHARE * shares[0]
    lasting = [share for share in shares if share >= least]
    return tuple(
        replace(updates, share=share) for updates, share in zip(rounds, lasting, strict=False)
    )
