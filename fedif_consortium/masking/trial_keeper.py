"""A keeper in the server's own process: masked rounds to be tried, without anything set up."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedif_consortium.evidence.keys import key_digest
from fedif_consortium.masking.boxes import KeeperKey
from fedif_consortium.masking.interface import OpenedRound
from fedif_consortium.masking.keeper import Keeper, KeeperState
from fedif_consortium.masking.policy import KeeperPolicy
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
    public = key.public_key().public_bytes_raw().hex()
    return Masking(TrialKeeper(secret, key), trial_keeper=public, trial_secret=secret)


class TrialKeeper(Keeper):
    """A keeper that knows every node of a trial run, since their keys are made of one secret."""

    def __init__(self, secret: str, key: KeeperKey) -> None:
        super().__init__(TRIAL_POLICY, {}, key)
        self._secret = secret

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Open a round's boxes, whatever was opened before."""
        for node in boxes:
            public = trial_key(self._secret, node).public_key()
            self._members[key_digest(public)] = f"node {node}", public
        self._state = KeeperState()
        return super().open_round(run, server_round, length, boxes)
