"""Krum, Multi-Krum and the geometric median of ten vectors: ours beside ByzFL's, in turns.

Needs ByzFL beside this package, in this environment or in that of the interpreter which
``BYZFL_PYTHON`` names. Both get one matrix and return one vector.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from torch import Tensor

from benchmarks.common import Figure, report
from benchmarks.workload import PROJECT
from fedif_flower.aggregators import geometric_median_weights, krum_weights

CLIENTS, SIZE, MALICIOUS = 10, 1_059_306, 2
NU, ITERATIONS = 0.1, 3
Aggregator = Callable[[Tensor], Tensor]


def our_aggregators(iterations: int = ITERATIONS) -> dict[str, Aggregator]:
    """Return our aggregators, weights and weighted sum together."""

    def combined(weights: Callable[[Tensor], Tensor]) -> Aggregator:
        return lambda vectors: weights(vectors).to(vectors.dtype) @ vectors

    return {
        "Krum": combined(lambda x: krum_weights(x, MALICIOUS)),
        "Multi-Krum": combined(lambda x: krum_weights(x, MALICIOUS, CLIENTS - MALICIOUS)),
        "geometric median": combined(
            lambda x: geometric_median_weights(x, torch.ones(len(x)), iterations=iterations, nu=NU)
        ),
    }


def byzfl_aggregators(iterations: int = ITERATIONS) -> dict[str, Aggregator]:
    """Return ByzFL's aggregators."""
    import byzfl

    return {
        "Krum": byzfl.Krum(MALICIOUS),
        "Multi-Krum": byzfl.MultiKrum(MALICIOUS),
        "geometric median": byzfl.GeometricMedian(NU, iterations),
    }


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the relative distance of two outputs."""
    return float((ours - theirs).norm() / theirs.norm())


def measure(times: int) -> list[Figure]:
    """Time both implementations of each aggregator in turns and compare what they return.

    Their geometric medians start elsewhere (ours from the mean, theirs from 0), so that they are
    compared where both have converged.
    """
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(CLIENTS, SIZE, generator=generator)
    vectors[:MALICIOUS] += 3.0  # Outliers, so that every definition of Krum selects the same.
    figures = []
    converged = our_aggregators(100)["geometric median"], byzfl_aggregators(100)["geometric median"]
    theirs = byzfl_aggregators()
    for name, ours in our_aggregators().items():
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(times + 1):
            for found, aggregate in zip(seconds, (ours, theirs[name]), strict=True):
                started = time.perf_counter()
                aggregate(vectors)
                found.append(1e3 * (time.perf_counter() - started))
        fast, peer = (statistics.median(found[1:]) for found in seconds)
        compared = converged if name == "geometric median" else (ours, theirs[name])
        apart = difference(compared[0](vectors), compared[1](vectors))
        spread = f"{min(seconds[0][1:]):.1f} to {max(seconds[0][1:]):.1f} ms"
        note = f"outputs differ by {apart:.1e}"
        figures.append(
            Figure(f"{name} / ByzFL's", fast, peer, "ms", fast / peer, "<= 1.0", spread, note)
        )
    return figures


def main(
    full: Annotated[bool, typer.Option(help="more repetitions")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
    threads: Annotated[int, typer.Option(help="torch threads")] = 1,
) -> None:
    """Print the table."""
    if importlib.util.find_spec("byzfl") is None:
        python = os.environ.get("BYZFL_PYTHON")
        if python is None:
            print(
                "robust aggregators: left out: ByzFL is not installed here, BYZFL_PYTHON is not set"
            )
            return
        command = [python, "-m", "benchmarks.robust_aggregators", *sys.argv[1:]]
        raise SystemExit(subprocess.run(command, cwd=PROJECT, check=False).returncode)
    torch.set_num_threads(threads)
    title = f"Robust aggregators, ({CLIENTS}, {SIZE:,})"
    report(title, "robust-aggregators", measure(21 if full else 5), write=write, full=full)


if __name__ == "__main__":
    typer.run(main)
