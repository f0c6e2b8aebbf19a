"""A keeper in the server's own process: masked rounds to be tried, without anything set up."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedif_consortium.evidence.chained_log import ChainedLog
from fedif_consortium.evidence.keys import VerifyingKey
from fedif_consortium.masking import Keeper, KeeperPolicy, OpenedRound, Ring, Sketches
from fedif_consortium.masking.terms import trial_key
from fedif_consortium.masking.workspace import Masking

logger = logging.getLogger(__name__)

# What a keeper beside the server guards against is the server itself: it may ask what it likes.
TRIAL_POLICY = KeeperPolicy(
    least_members=2,
    largest_share=1.0,
    least_effective_members=1.0,
    largest_entry=1.0,
    largest_known_share=1e9,
)


def trial_masking() -> Masking:
    """Return masks for trial, with keys made for this run."""
    logger.warning("masked for trial: the keeper runs beside the server, and protects nobody")
    secret, key = secrets.token_hex(32), X25519PrivateKey.generate()
    return Masking(
        keeper=TrialKeeper(secret, key),
        trial_keeper=key.public_key().public_bytes_raw().hex(),
        trial_secret=secret,
    )


class TrialKeeper:
    """A keeper that knows every node of a trial run, since their keys are made of one secret."""

    def __init__(self, secret: str, key: X25519PrivateKey) -> None:
        self._secret, self._key = secret, key
        self._members: dict[str, VerifyingKey] = {}
        self._log = ChainedLog()
        self._keeper = self._made()

    def _made(self) -> Keeper:
        return Keeper(TRIAL_POLICY, self._members, self._key, log=self._log)

    def policy(self) -> KeeperPolicy:
        """Return the keeper's limits."""
        return self._keeper.policy()

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Open a round's boxes."""
        for node in boxes:
            self._members.setdefault(f"node {node}", trial_key(self._secret, node).public_key())
        self._keeper = self._made()
        return self._keeper.open_round(run, server_round, length, boxes)

    def sketches(self, run: int, server_round: int) -> Sketches:
        """Return the masks' sketches."""
        return self._keeper.sketches(run, server_round)

    def products(self, run: int, server_round: int, vectors: Ring) -> Ring:
        """Return the masks' products with vectors."""
        return self._keeper.products(run, server_round, vectors)

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum of the masks times weights."""
        return self._keeper.weighted_sum(run, server_round, weights)

    def close_round(self, run: int, server_round: int) -> str:
        """Delete the round's seeds."""
        return self._keeper.close_round(run, server_round)
