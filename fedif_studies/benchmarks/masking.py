"""What masked rounds cost: one member's update at the member, the keeper and the server; memory.

Each step is compared with the same step on a plain update of float32: a product, a weighted sum, a
copy for what has no like. ``--full`` takes 1.06, 11 and 100 million parameters.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fedif_consortium.masking.boxes import MaskedUpdate, MaskingTerms, mask_update
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import SignSketch, digest, encode_vector, mask_of, products
from fedif_studies.benchmarks.common import Figure, alone, beside, repeat, report

SIZES = {"CIFAR-10 CNN, d = 1,059,306": 1_059_306, "ResNet-18, d = 11.2 M": 11_173_962}
LARGEST = {"d = 100 M": 100_000_000}
MEMORY = 1_059_306  # Parameters where peak memory is taken.
MANY = (10, 1_000)  # Members.


def steps(name: str, length: int, times: int) -> list[Figure]:
    """Time each step of one member's update beside the same on a plain update."""
    rng = np.random.default_rng(0)
    update, direction = (rng.standard_normal(length, np.float32) for _ in range(2))
    update /= np.linalg.norm(update)
    keeper, key = X25519PrivateKey.generate().public_key(), Ed25519PrivateKey.generate()
    seed = secrets.token_bytes(32)

    def masked() -> MaskedUpdate:
        return mask_update(update, keeper, key, MaskingTerms(run=1, keys=[]), node=1)

    vector = masked().vector
    encoded, _ = encode_vector(direction)
    sketch = SignSketch(seed, KeeperPolicy().sketch_for(length), length)
    total, plain = np.zeros(length, np.uint64), np.zeros(length, np.float32)
    weight = np.uint64(12345)

    def mask() -> NDArray[np.uint64]:
        return mask_of(seed, length)

    plainly: dict[str, Callable[[], object]] = {
        "a copy": update.copy,
        "a product": lambda: np.dot(update, direction),
        "of the plain sum": lambda: np.add(plain, update * np.float32(0.1), out=plain),
    }
    pairs: dict[str, tuple[Callable[[], object], str]] = {
        "member masks and seals": (masked, "a copy"),
        "server checks the digest": (lambda: digest(vector), "a copy"),
        "server's sketch of 256": (lambda: sketch.of(vector), "a copy"),
        "server's product": (lambda: products(encoded, [vector]), "a product"),
        "server's part of the sum": (
            lambda: np.add(total, vector * weight, out=total),
            "of the plain sum",
        ),
        "keeper makes a mask": (mask, "a copy"),
        "keeper's sketch of 256": (lambda: sketch.of(mask()), "a copy"),
        "keeper's product": (lambda: products(encoded, [mask()]), "a product"),
        "keeper's part of the sum": (
            lambda: np.add(total, mask() * weight, out=total),
            "of the plain sum",
        ),
    }
    found = []
    for step, (own, what) in pairs.items():
        # CPU seconds, which other work on the machine hardly changes.
        ours, theirs = (repeat(call, times, time.process_time) for call in (own, plainly[what]))
        of = f"{name}: {step} / {what}"
        found.append(beside(of, ours, theirs.median, unit="CPU ms"))
    found.append(
        Figure(f"{name}: upload / plain", 8e-6 * length, 4e-6 * length, "MB", 2.0, "<= 2.1")
    )
    return found


def many_members() -> list[Figure]:
    """Compare a keeper's round of many members with one of few."""
    few, many = (alone("masked_keeper", str(members), str(MEMORY)) for members in MANY)
    found = []
    for what, peer in few.items():
        unit, aim = ("MB", "flat") if what == "peak" else ("CPU s", "100")
        title = "keeper's peak memory" if what == "peak" else f"keeper {what}"
        name = f"{title}, d = 1.06 M: 1,000 members / 10"
        found.append(Figure(name, many[what], peer, unit, many[what] / peer, aim))
    return found


def main(
    full: Annotated[bool, typer.Option(help="the sizes that are quoted")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    figures = []
    for name, length in (SIZES | (LARGEST if full else {})).items():
        figures += steps(name, length, 3 if length > 50_000_000 else 9)
    figures += many_members()
    report("Masked rounds", "masking", figures, write=write, full=full)


if __name__ == "__main__":
    typer.run(main)
