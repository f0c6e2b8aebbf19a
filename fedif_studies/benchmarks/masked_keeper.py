"""One masked round at a keeper, in a process of its own: ``masked_keeper MEMBERS PARAMETERS``.

It imports only what a keeper imports, so that its peak memory is that of a keeper.
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
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedif_consortium.evidence.keys import key_digest
from fedif_consortium.masking.boxes import BoxHeader, seal
from fedif_consortium.masking.keeper import Keeper
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import encode_vector, encode_weights


def keep_a_round(members: int, length: int) -> dict[str, float]:
    """Act as the keeper of one round with so many members and parameters.

    Return the CPU seconds of each answer by name, and this process's peak memory in MB (``peak``).
    """
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((2, length), np.float32)
    vectors = []
    for direction in directions:
        vector, _ = encode_vector(direction)
        vectors.append(vector)
    keeper_key = X25519PrivateKey.generate()
    enrolled = {}
    boxes = {}
    for node in range(members):
        key = Ed25519PrivateKey.generate()
        enrolled[f"member {node}"] = key.public_key()
        boxes[node] = _sealed_box(node, length, keeper_key.public_key(), key)
    keeper = Keeper(KeeperPolicy(), enrolled, keeper_key)
    weights, _ = encode_weights(np.ones(members))

    def open_boxes() -> None:
        keeper.open_round(1, 1, length, boxes)

    def multiply() -> None:
        for vector in vectors:
            keeper.products(1, 1, vector)

    def add() -> None:
        keeper.weighted_sum(1, 1, weights)

    answers: dict[str, Callable[[], None]] = {
        "opens boxes, sketches": open_boxes,
        "products with 2 vectors": multiply,
        "sum": add,
    }
    figures = {}
    for name, answer in answers.items():
        started = time.process_time()
        answer()
        figures[name] = time.process_time() - started
    figures["peak"] = _peak_megabytes()
    return figures


def _sealed_box(
    node: int, length: int, keeper: X25519PublicKey, member: Ed25519PrivateKey
) -> bytes:
    """Return the seed of a member's mask, sealed for the keeper."""
    digest = key_digest(member.public_key())
    header = BoxHeader(1, 1, node, length, bytes(32), bytes(32), bytes(32), digest)
    return seal(header, secrets.token_bytes(32), keeper, member)


def _peak_megabytes() -> float:
    """Return the peak of this process's resident memory, in MB."""
    # getrusage would include the peak of the process that started this one.
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "VmHWM":
            kilobytes, _unit = amount.split()
            return int(kilobytes) / 1e3
    raise RuntimeError("/proc/self/status has no line VmHWM")


if __name__ == "__main__":
    _, num_members, num_parameters = sys.argv
    print(json.dumps(keep_a_round(int(num_members), int(num_parameters))))
