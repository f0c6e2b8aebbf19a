"""How soon a federation with slow members learns: waiting for all, closing early, or never waiting.

Twenty members on the digits, the slowest ten times as slow as the fastest. Seconds are those of a
simulated clock, :class:`~fedif_flower.runtime.clocked_grid.ClockedGrid`, so that they do not depend
on the machine. Rows are appended as they come; what is there is not run again. With ``--cifar10``
the members train LeNet-5 on CIFAR-10 instead, out of a folder of its images.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated

import torch
import typer

from fedif_flower.client.app import task_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import RoundRow, read_rows
from fedif_flower.runtime.clocked_grid import ClockedGrid
from fedif_flower.seeding import numpy_generator
from fedif_flower.settings import Scalar
from fedif_studies.rows import RESULTS, append_rows

OUTPUT = RESULTS / "pace.csv"
CLIENTS = 20
PACES: Mapping[str, Mapping[str, Scalar]] = {
    "wait for all": {},
    "close at 60 %": {"round-quorum": 0.6},
    "close at 60 %, late replies count": {"round-quorum": 0.6, "late-rounds": 10},
    "buffered, steps of 5": {"rounds": "buffered", "buffer-size": 5},
}
CASES: Mapping[str, Mapping[str, Scalar]] = {
    "honest": {},
    "label noise 20 %": {"attack": "label-noise", "malicious-fraction": 0.2},
}
CIFAR10 = "CIFAR-10, LeNet-5"
GOALS: Mapping[str, float] = {**dict.fromkeys(CASES, 0.9), CIFAR10: 0.45}
# Replies, and so work, are the same for all: 40 rounds of all members.
REPLIES = 40 * CLIENTS
COLUMNS = (
    *("case", "pace", "strategy", "seed"),
    *("goal", "seconds-to-goal", "last-ten", "seconds", "steps"),
)


def speeds(seed: int) -> list[float]:
    """Return each member's seconds of training: from 1 to 10, evenly in their logarithm."""
    order = numpy_generator("pace", seed).permutation(CLIENTS)
    return [float(10 ** (place / (CLIENTS - 1))) for place in order]


def steps_of(pace: Mapping[str, Scalar]) -> int:
    """Return for how many steps a pace has its replies."""
    if "buffer-size" in pace:
        return REPLIES // int(pace["buffer-size"])
    return round(REPLIES / (float(pace.get("round-quorum", 1.0)) * CLIENTS))


def measure(
    case: str, own: Mapping[str, Scalar], pace: str, strategy: str, seed: int
) -> dict[str, object]:
    """Return one line of a case with settings of its own."""
    seconds = speeds(seed)
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.from_run_config(
            {
                **default_run_config(),
                "num-clients": CLIENTS,
                "fraction-train": 1.0,
                "local-epochs": 1,
                "num-server-rounds": steps_of(PACES[pace]),
                "checkpoint-every": 0,
                "output-dir": folder,
                "strategy": strategy,
                "device": "cpu",
                "seed": seed,
                **own,
                **PACES[pace],
            }
        )
        grid = ClockedGrid(task_app(), CLIENTS, seconds.__getitem__)
        curve: list[tuple[float, float]] = []

        def note(row: RoundRow) -> None:
            curve.append((grid.now, float(row.test_accuracy or 0.0)))

        run_federation(grid, config, note)
    reached = next((now for now, accuracy in curve if accuracy >= GOALS[case]), None)
    last = [accuracy for _, accuracy in curve[-10:]]
    return {
        "case": case,
        "pace": pace,
        "strategy": strategy,
        "seed": seed,
        "goal": GOALS[case],
        "seconds-to-goal": "" if reached is None else round(reached, 1),
        "last-ten": round(sum(last) / len(last), 4),
        "seconds": round(grid.now, 1),
        "steps": len(curve) - 1,
    }


def main(
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 3,
    output: Annotated[Path, typer.Option(help="The rows.")] = OUTPUT,
    cifar10: Annotated[
        Path | None, typer.Option(help="CIFAR-10 as train/<class>/, test/<class>/: this alone.")
    ] = None,
) -> None:
    """Measure what is not there yet."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    done = {tuple(row[name] for name in COLUMNS[:4]) for row in read_rows(output)}
    cases = CASES
    if cifar10 is not None:
        folder = {"dataset": "image-folder", "data-dir": str(cifar10.absolute()), "model": "lenet5"}
        cases = {CIFAR10: {**folder, "batch-size": 64, "learning-rate": 0.05}}
    for seed, case, strategy, pace in product(range(seeds), cases, ("fedavg", "fedif"), PACES):
        if (case, pace, strategy, str(seed)) not in done:
            line = measure(case, cases[case], pace, strategy, seed)
            append_rows(output, COLUMNS, [list(line.values())])


if __name__ == "__main__":
    typer.run(main)
