"""The server's half of a method whose clients are told how to train, and report figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedif_flower.round import RoundUpdates

Told = Mapping[str, bool | int | float | str]


class Turn(NamedTuple):
    """Who may be asked in a round, by client id, and whether all of them are."""

    members: Sequence[int]
    everyone: bool = False


class Guide:
    """Tells every client the same, nothing; a subclass overrides what it needs.

    Attributes
    ----------
    noisy : frozenset of int
        The client ids of those whose labels are taken to be wrong.
    """

    weighs = False  # Whether it changes weights, by looking at updates.

    def __init__(self) -> None:
        self.noisy: frozenset[int] = frozenset()

    def turn(self, members: Sequence[int], server_round: int) -> Turn:  # noqa: ARG002
        """Return who of the members that are there may be asked."""
        return Turn(members)

    def asked(self, client_ids: Sequence[int], server_round: int) -> None:
        """Be told whom a round asks."""

    def told(self, client_id: int, server_round: int) -> Told:  # noqa: ARG002
        """Return what a client finds as ``LocalRound.told``."""
        return {}

    def expected(self, server_round: int) -> Mapping[str, int]:  # noqa: ARG002
        """Return the lengths of the arrays that a reply has to report, by name."""
        return {}

    def take(
        self, server_round: int, client_ids: Sequence[int], reports: Mapping[str, Tensor]
    ) -> None:
        """Take in what the m clients of accepted replies reported: ``[m, length]``, finite."""

    def weighted(self, updates: RoundUpdates, weights: Tensor) -> Tensor:  # noqa: ARG002
        """Return the weights ``[m]`` to use in place of the strategy's."""
        return weights

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"noisy": sorted(self.noisy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.noisy = frozenset(state["noisy"])
