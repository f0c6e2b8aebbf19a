"""A keeper, members and what a server does with both, small enough for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedif_consortium.masking.interface import OpenedRound
from fedif_consortium.masking.keeper import Keeper
from fedif_consortium.masking.member import MaskedUpdate, mask_update
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.products import (
    decode_products,
    decode_step,
    encode_vectors,
    encode_weights,
    products,
)
from fedif_consortium.masking.sketches import SignSketch, estimated_lengths

RUN = 2**63 + 5  # Flower's ids may use all 64 bits.
# For models of a few parameters, of which a sketch may not take most by default.
OPEN = KeeperPolicy(sketch_share=1.0, largest_entry=1.0, largest_known_share=9.0)


@dataclass
class Parties:
    """Members with Ed25519 keys, by names ``member 0`` ..., at nodes 100 ..."""

    members: int = 5
    policy: KeeperPolicy = OPEN
    keys: list[Ed25519PrivateKey] = field(init=False)
    key: X25519PrivateKey = field(init=False)
    keeper: Keeper = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [Ed25519PrivateKey.generate() for _ in range(self.members)]
        self.key = X25519PrivateKey.generate()
        self.keeper = self.keeper_with()

    def keeper_with(self, **options) -> Keeper:
        known = {f"member {i}": key.public_key() for i, key in enumerate(self.keys)}
        return Keeper(self.policy, known, self.key, **options)

    def mask(self, member: int, update, server_round: int = 1, **other) -> MaskedUpdate:
        bound = {"run": RUN, "server_round": server_round, "node": 100 + member, **other}
        return mask_update(np.asarray(update), self.key.public_key(), self.keys[member], **bound)

    def mask_all(self, updates, server_round: int = 1) -> dict[int, MaskedUpdate]:
        return {100 + i: self.mask(i, update, server_round) for i, update in enumerate(updates)}

    def open(self, masked: dict[int, MaskedUpdate], server_round: int = 1) -> OpenedRound:
        length = len(next(iter(masked.values())).vector)
        boxes = {node: one.box for node, one in masked.items()}
        return self.keeper.open_round(RUN, server_round, length, boxes)


@dataclass
class Server:
    """What a server knows in round 1: masked vectors, and what the keeper answers."""

    keeper: Keeper
    vectors: np.ndarray  # [m, d] uint64
    opened: OpenedRound

    def lengths(self) -> tuple[np.ndarray, SignSketch]:
        masks = self.opened.sketches
        sketch = SignSketch(self.opened.seed, masks.shape[1], self.vectors.shape[1])
        own = np.array([sketch.of(vector) for vector in self.vectors])
        return estimated_lengths(own - masks), sketch

    def scores(self, directions) -> np.ndarray:
        encoded, exponents = encode_vectors(np.asarray(directions))
        own = np.array([products(vector, encoded) for vector in self.vectors])
        return decode_products(own - self.keeper.products(RUN, 1, encoded), exponents)

    def step(self, weights) -> np.ndarray:
        encoded, total = encode_weights(np.asarray(weights))
        masks = self.keeper.weighted_sum(RUN, 1, encoded)
        return decode_step(np.sum(encoded[:, None] * self.vectors, axis=0) - masks, total)


def opened(parties: Parties, updates) -> Server:
    """Return a server whose round 1 has these updates ``[m, d]``."""
    masked = parties.mask_all(updates)
    answer = parties.open(masked)
    assert not answer.refused
    return Server(parties.keeper, np.array([masked[node].vector for node in answer.nodes]), answer)
