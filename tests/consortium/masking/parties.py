"""A keeper, members and what a server makes of both, small enough for tests."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedif_consortium.masking.boxes import MaskedUpdate, MaskingTerms, mask_update
from fedif_consortium.masking.keeper import Keeper, OpenedRound
from fedif_consortium.masking.masked_round import MaskedRound
from fedif_consortium.masking.policy import KeeperPolicy

RUN = 2**63 + 5  # Flower's ids may use all 64 bits.
# For models of a few parameters, of which a sketch may not take most by default.
OPEN = KeeperPolicy(sketch_share=1.0, largest_entry=1.0, largest_known_share=9.0)


class Parties:
    """Members with Ed25519 keys, by names ``member 0`` ..., at nodes 100 ..."""

    def __init__(self, members: int = 5, policy: KeeperPolicy = OPEN) -> None:
        self.policy, self.key = policy, X25519PrivateKey.generate()
        self.keys = [Ed25519PrivateKey.generate() for _ in range(members)]
        self.keeper = self.keeper_with()

    def keeper_with(self, **options) -> Keeper:
        known = {f"member {i}": key.public_key() for i, key in enumerate(self.keys)}
        return Keeper(self.policy, known, self.key, **options)

    def mask(
        self, member: int, update, server_round: int = 1, *, run=RUN, node=0, **other
    ) -> MaskedUpdate:
        terms = MaskingTerms(run=run, server_round=server_round, keys=[])
        keys, node = (self.key.public_key(), self.keys[member]), node or 100 + member
        return mask_update(np.asarray(update), *keys, terms, node, **other)

    def mask_all(self, updates, server_round: int = 1) -> dict[int, MaskedUpdate]:
        return {100 + i: self.mask(i, update, server_round) for i, update in enumerate(updates)}

    def open(self, masked: dict[int, MaskedUpdate], server_round: int = 1) -> OpenedRound:
        length = len(next(iter(masked.values())).vector)
        boxes = {node: one.box for node, one in masked.items()}
        return self.keeper.open_round(RUN, server_round, length, boxes)

    def opened(self, updates, spoil=lambda vectors: None, server_round: int = 1) -> MaskedRound:
        """Return what a server knows of a round, all of whose updates ``[m, d]`` count."""
        masked = self.masked = self.mask_all(updates, server_round)
        vectors = [one.vector for one in masked.values()]
        spoil(vectors)
        lengths = np.array([one.length for one in masked.values()])
        answer = self.open(masked, server_round)
        return MaskedRound(self.keeper, (RUN, server_round), answer, vectors, lengths)
