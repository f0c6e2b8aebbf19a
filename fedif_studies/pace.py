"""How soon a federation with slow members learns: waiting for all, closing early, or never waiting.

Twenty members on the digits, the slowest ten times as slow as the fastest. Seconds are those of a
simulated clock, :class:`~fedif_flower.runtime.clocked_grid.ClockedGrid`, so that they do not depend
on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Annotated

import typer

from fedif_flower.client.app import task_app
from fedif_flower.run.rows import RoundRow
from fedif_flower.runtime.clocked_grid import ClockedGrid
from fedif_flower.seeding import numpy_generator
from fedif_flower.settings import Scalar
from fedif_studies.lab.run import federated, fill
from fedif_studies.rows import RESULTS, Row

OUTPUT = RESULTS / "pace.csv"
CLIENTS = 20
PACES: Mapping[str, Mapping[str, Scalar]] = {
    "wait for all": {},
    "close at 60 %": {"pace.quorum": 0.6},
    "close at 60 %, late replies count": {"pace.quorum": 0.6, "pace.late-rounds": 10},
    "buffered, steps of 5": {"pace.rounds": "buffered", "pace.buffer-size": 5},
}
CASES: Mapping[str, Mapping[str, Scalar]] = {
    "honest": {},
    "label noise 20 %": {"attack": "label-noise", "malicious-fraction": 0.2},
}
GOAL = 0.9
# Replies, and so work, are the same for all: 40 rounds of all members.
REPLIES = 40 * CLIENTS


def speeds(seed: int) -> list[float]:
    """Return each member's seconds of training: from 1 to 10, evenly in their logarithm."""
    order = numpy_generator("pace", seed).permutation(CLIENTS)
    return [float(10 ** (place / (CLIENTS - 1))) for place in order]


def steps_of(pace: Mapping[str, Scalar]) -> int:
    """Return for how many steps a pace has its replies."""
    if "pace.buffer-size" in pace:
        return REPLIES // int(pace["pace.buffer-size"])
    return round(REPLIES / (float(pace.get("pace.quorum", 1.0)) * CLIENTS))


def measure(cell: Row) -> list[Row]:
    """Return how long one federation took to its goal, and where it ended."""
    case, pace, seed = str(cell["case"]), PACES[str(cell["pace"])], int(str(cell["seed"]))
    grid = ClockedGrid(task_app(), CLIENTS, speeds(seed).__getitem__)
    curve: list[tuple[float, float]] = []

    def note(row: RoundRow) -> None:
        curve.append((grid.now, float(row.test_accuracy or 0.0)))

    settings: dict[str, Scalar] = {
        "num-clients": CLIENTS,
        "fraction-train": 1.0,
        "local-epochs": 1,
        "num-server-rounds": steps_of(pace),
        "strategy": str(cell["strategy"]),
        "seed": seed,
    }
    with federated({**settings, **CASES[case], **pace}, grid, on_row=note):
        reached = next((now for now, accuracy in curve if accuracy >= GOAL), None)
        last = [accuracy for _, accuracy in curve[-10:]]
        return [
            {
                "goal": GOAL,
                "seconds-to-goal": "" if reached is None else round(reached, 1),
                "last-ten": round(sum(last) / len(last), 4),
                "seconds": round(grid.now, 1),
                "steps": len(curve) - 1,
            }
        ]


def main(seeds: Annotated[int, typer.Option(help="the seeds 0, 1 ...")] = 3) -> None:
    """Measure what is not there yet."""
    points = product(range(seeds), CASES, ("fedavg", "fedif"), PACES)
    cells: list[Row] = [
        {"case": case, "pace": pace, "strategy": strategy, "seed": seed}
        for seed, case, strategy, pace in points
    ]
    fill(OUTPUT, cells, measure)


if __name__ == "__main__":
    typer.run(main)
