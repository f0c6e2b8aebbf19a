"""One masked round at a keeper, in a process of its own: ``masked_keeper MEMBERS PARAMETERS``.

It imports what a keeper does and nothing else, so that its peak memory is a keeper's.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedif_consortium.evidence.keys import key_digest
from fedif_consortium.masking.boxes import BoxHeader, seal
from fedif_consortium.masking.keeper import Keeper
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import encode_vector, encode_weights


def keep_a_round(members: int, length: int) -> dict[str, float]:
    """Keep one round of so many members; return CPU seconds by answer, and this process's peak."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((2, length), np.float32)
    vectors = [encode_vector(direction)[0] for direction in directions]
    member_keys = [Ed25519PrivateKey.generate() for _ in range(members)]
    keeper_key = X25519PrivateKey.generate()
    boxes = {}
    for node, key in enumerate(member_keys):
        header = BoxHeader(
            1, 1, node, length, bytes(32), bytes(32), bytes(32), key_digest(key.public_key())
        )
        boxes[node] = seal(header, secrets.token_bytes(32), keeper_key.public_key(), key)
    enrolled = {f"member {i}": key.public_key() for i, key in enumerate(member_keys)}
    keeper = Keeper(KeeperPolicy(), enrolled, keeper_key)
    weights, _ = encode_weights(np.ones(members))
    answers: dict[str, Callable[[], object]] = {
        "opens boxes, sketches": lambda: keeper.open_round(1, 1, length, boxes),
        "products with 2 vectors": lambda: [keeper.products(1, 1, vector) for vector in vectors],
        "sum": lambda: keeper.weighted_sum(1, 1, weights),
    }
    figures = {}
    for name, answer in answers.items():
        started = time.process_time()
        answer()
        figures[name] = time.process_time() - started
    figures["peak"] = _peak_megabytes()
    return figures


def _peak_megabytes() -> float:
    """Return the most memory that this process had."""
    # Not getrusage, whose peak is at least that of the process that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1e3


if __name__ == "__main__":
    _, num_members, num_parameters = sys.argv
    print(json.dumps(keep_a_round(int(num_members), int(num_parameters))))
