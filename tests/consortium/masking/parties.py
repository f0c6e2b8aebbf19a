"""A keeper, members and what a server makes of both, small enough for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedif_consortium.masking.boxes import MaskedUpdate, mask_update
from fedif_consortium.masking.keeper import Keeper, OpenedRound
from fedif_consortium.masking.masked_round import MaskedRound
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import UPDATE_BITS, decode
from fedif_consortium.masking.sketches import SignSketch

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

    def opened(self, updates, spoil=lambda vectors: None) -> MaskedRound:
        """Return what a server knows of round 1, all of whose updates ``[m, d]`` count."""
        masked = self.mask_all(updates)
        answer = self.open(masked)
        assert not answer.refused
        vectors = [masked[node].vector for node in answer.nodes]
        spoil(vectors)
        sketch = SignSketch(answer.seed, answer.sketches.shape[1], len(vectors[0]))
        sketches = np.array([sketch.of(vector) for vector in vectors]) - answer.sketches
        return MaskedRound(
            self.keeper, (RUN, 1), sketch, answer.sketches, [*range(len(vectors))], vectors,
            decode(sketches, UPDATE_BITS), np.array([masked[node].length for node in masked]),
            torch.float64,
        )  # fmt: skip
