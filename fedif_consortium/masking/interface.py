"""What a server asks a keeper, whether that runs beside it or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Protocol

from annotated_types import Len
from pydantic import BaseModel, ConfigDict

from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import SEED_BYTES, Ring, to_ring


class _Travels(BaseModel):
    """What is sent to a keeper, or by it, as JSON."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class RoundBoxes(_Travels):
    """A round's boxes by node id; ``length`` is d."""

    length: int
    boxes: dict[int, bytes]


class OpenedRound(_Travels):
    """Whose boxes the keeper opened, and the sketches of their masks.

    Attributes
    ----------
    nodes : tuple of int
        Node ids, in the order of all later answers' rows.
    refused : dict of int to str
        By node id, why a box was not opened.
    seed : bytes
        Of :class:`~fedif_consortium.masking.sketches.SignSketch`: the keeper's own, always one.
    packed : bytes
        The sketches.
    """

    nodes: tuple[int, ...]
    refused: dict[int, str]
    seed: Annotated[bytes, Len(SEED_BYTES, SEED_BYTES)]
    packed: bytes

    @property
    def sketches(self) -> Ring:
        """Of the masks, ``[m, k]``."""
        return to_ring(self.packed).reshape(len(self.nodes), -1)


class MaskKeeper(Protocol):
    """Keeps the seeds of masks, and answers what its policy allows.

    Every method raises KeeperError where there is no answer, and RefusedByPolicyError, a
    KeeperError, where the policy forbids it.
    """

    def policy(self) -> KeeperPolicy:
        """Return the keeper's limits."""

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Hand in a round's boxes by node id, all at once; ``length`` is d.

        A round is opened once, and rounds of a run only in rising order. It ends the run's last.
        """

    def products(self, run: int, server_round: int, vectors: Ring) -> Ring:
        """Return the masks' products ``[m, j]`` with vectors ``[j, d]``."""

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum ``[d]`` of the masks times weights ``[m]``; a round has one."""

    def close_round(self, run: int, server_round: int) -> str:
        """Let the keeper delete the round's seeds; return its log's last hash, in hex."""
