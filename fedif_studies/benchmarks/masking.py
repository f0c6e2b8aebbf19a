"""The cost of masked rounds: time for one member's update at member, keeper and server; memory.

Each step is compared with the same step on a plain update of float32: a product, a weighted sum, or
a copy where a plain update needs no such step. ``--full`` measures 100 million parameters, too.
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
from fedif_studies.benchmarks.common import Figure, alone, beside, repeat, report, run_benchmark

SIZES = {"CIFAR-10 CNN, d = 1,059,306": 1_059_306, "ResNet-18, d = 11.2 M": 11_173_962}
LARGEST = {"d = 100 M": 100_000_000}
MEMORY = 1_059_306  # The number of parameters for which a keeper's peak memory is measured.
FEW_MEMBERS = 10
MANY_MEMBERS = 1_000
Call = Callable[[], object]


def steps(name: str, length: int, times: int) -> list[Figure]:
    """Time each step for one member's update, and the step on a plain update beside it."""
    rng = np.random.default_rng(0)
    update = rng.standard_normal(length, np.float32)
    direction = rng.standard_normal(length, np.float32)
    update /= np.linalg.norm(update)
    keeper = X25519PrivateKey.generate().public_key()
    key = Ed25519PrivateKey.generate()
    seed = secrets.token_bytes(32)

    def masked() -> MaskedUpdate:
        return mask_update(update, keeper, key, MaskingTerms(run=1, keys=[]), node=1)

    vector = masked().vector
    encoded, _ = encode_vector(direction)
    sketch = SignSketch(seed, KeeperPolicy().sketch_for(length), length)
    total = np.zeros(length, np.uint64)
    plain_total = np.zeros(length, np.float32)
    weight = np.uint64(12345)  # No step takes longer with another weight.

    def mask() -> NDArray[np.uint64]:
        return mask_of(seed, length)

    def add_plain() -> None:
        np.add(plain_total, update * np.float32(0.1), out=plain_total)

    def add_masked() -> None:
        np.add(total, vector * weight, out=total)

    def add_mask() -> None:
        np.add(total, mask() * weight, out=total)

    # Each step by its name in the table, and the plain step that it is compared with.
    copy = ("a copy", update.copy)
    product = ("a product", lambda: np.dot(update, direction))
    plain_sum = ("of the plain sum", add_plain)
    pairs: dict[str, tuple[Call, tuple[str, Call]]] = {
        "member masks and seals": (masked, copy),
        "server checks the digest": (lambda: digest(vector), copy),
        "server's sketch of 256": (lambda: sketch.of(vector), copy),
        "server's product": (lambda: products(encoded, [vector]), product),
        "server's part of the sum": (add_masked, plain_sum),
        "keeper makes a mask": (mask, copy),
        "keeper's sketch of 256": (lambda: sketch.of(mask()), copy),
        "keeper's product": (lambda: products(encoded, [mask()]), product),
        "keeper's part of the sum": (add_mask, plain_sum),
    }
    figures = []
    for step, (call, (plain_name, plain_call)) in pairs.items():
        # CPU seconds hardly depend on other work on the machine.
        ours = repeat(call, times, time.process_time)
        plain = repeat(plain_call, times, time.process_time)
        title = f"{name}: {step} / {plain_name}"
        figures.append(beside(title, ours, plain.median, unit="CPU ms"))
    return figures


def upload(name: str, length: int) -> Figure:
    """Return the size of a member's upload: eight bytes for each parameter instead of four."""
    title = f"{name}: upload / plain"
    return Figure(title, 8e-6 * length, 4e-6 * length, "MB", 2.0, "<= 2.1")


def many_members() -> list[Figure]:
    """Compare a keeper's round with many members with one with few."""
    few = alone("masked_keeper", str(FEW_MEMBERS), str(MEMORY))
    many = alone("masked_keeper", str(MANY_MEMBERS), str(MEMORY))
    figures = []
    for step, peer in few.items():
        title = f"keeper {step}"
        unit = "CPU s"
        aim = "100"
        if step == "peak":
            title = "keeper's peak memory"
            unit = "MB"
            aim = "flat"
        name = f"{title}, d = 1.06 M: 1,000 members / 10"
        figures.append(Figure(name, many[step], peer, unit, many[step] / peer, aim))
    return figures


def main(
    full: Annotated[bool, typer.Option(help="the sizes that are quoted")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    sizes = dict(SIZES)
    if full:
        sizes |= LARGEST
    figures = []
    for name, length in sizes.items():
        times = 3 if length > 50_000_000 else 9
        figures += steps(name, length, times)
        figures.append(upload(name, length))
    figures += many_members()
    report("Masked rounds", "masking", figures, write=write, full=full)


if __name__ == "__main__":
    run_benchmark(main)
