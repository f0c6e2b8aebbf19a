"""What a server asks a keeper, whether that runs beside it or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import Ring


@dataclass(frozen=True)
class OpenedRound:
    """Whose boxes the keeper opened.

    Attributes
    ----------
    nodes : tuple of int
        Node ids, in the order of all later answers' rows.
    members : tuple of str
        What the keeper's own list calls them.
    refused : mapping of int to str
        By node id, why a box was not opened.
    """

    nodes: tuple[int, ...]
    members: tuple[str, ...]
    refused: Mapping[int, str]


@dataclass(frozen=True)
class Sketches:
    """The sketches of a round's masks.

    Attributes
    ----------
    seed : bytes
        Of :class:`~fedif_consortium.masking.sketches.SignSketch`: the keeper's own, always one.
    values : ndarray
        ``[m, k]`` of uint64.
    """

    seed: bytes
    values: Ring


class MaskKeeper(Protocol):
    """Keeps the seeds of masks, and answers what its policy allows.

    The same request again gets the same answer, and counts once: a server may ask again where an
    answer was lost. Every method raises KeeperError where there is no answer, and
    RefusedByPolicyError, a KeeperError, where the policy forbids it.
    """

    def policy(self) -> KeeperPolicy:
        """Return the keeper's limits."""

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Hand in a round's boxes by node id, all at once; ``length`` is d.

        A round is opened once, and rounds of a run only in rising order. It ends the run's last.
        """

    def sketches(self, run: int, server_round: int) -> Sketches:
        """Return the masks' sketches."""

    def products(self, run: int, server_round: int, vectors: Ring) -> Ring:
        """Return the masks' products ``[m, j]`` with vectors ``[j, d]``."""

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum ``[d]`` of the masks times weights ``[m]``."""

    def close_round(self, run: int, server_round: int) -> str:
        """Let the keeper delete the round's seeds; return its log's last hash, in hex."""
