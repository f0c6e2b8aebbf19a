"""What strangers and a flooding member cost a federation's rounds, and its SuperLink's memory.

``--write`` adds to the committed rows. It starts a SuperLink behind TLS with 1,024 descriptors and
a run of three members on the digits, and attacks the port in every way of
:mod:`tests.integration.strangers`, one after the other, each between two spans in which nobody
attacks. ``--flower`` does so with Flower's own ``flower-superlink``. Attackers have a low
priority: they would have hosts of their own.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedif_studies.rows import RESULTS, Row, add_rows, machine, revision
from tests.integration.siege import Phase, Siege
from tests.integration.strangers import ATTACKS

QUIET = 0.5  # Of an attack's seconds: a span in which nobody attacks.


def row_of(attack: str, seconds: float, beside: Phase, quiet: list[Phase]) -> dict[str, object]:
    """Return one line: the rounds beside an attack and those around it."""
    usual = statistics.mean([s for phase in quiet for s in phase.seconds] or [math.nan])
    # A round that did not end is as long as the attack at least.
    mean = statistics.mean(beside.seconds or [seconds])
    return {
        "attack": attack,
        "seconds": seconds,
        "rounds": len(beside.seconds),
        "round-seconds": round(mean, 2),
        "usual-round-seconds": round(usual, 2),
        "times": f"{'' if beside.seconds else '> '}{mean / usual:.2f}",
        "peak-mib": beside.peak >> 20,
        "usual-peak-mib": quiet[0].peak >> 20,
        "attacker": json.dumps(beside.found[attack]),
    }


def main(
    seconds: Annotated[float, typer.Option(help="of each attack")] = 60.0,
    only: Annotated[str, typer.Option(help="attacks, by commas; empty: all")] = "",
    flower: Annotated[bool, typer.Option(help="Flower's own SuperLink")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Measure, and print a line for each attack."""
    attacks = only.split(",") if only else list(ATTACKS)
    superlink = "Flower's" if flower else "behind nginx"
    # The federation's own; when attackers knock is nobody's draw.
    origin = {"revision": revision(), "seed": 0, "processor": machine()["processor"]}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, Siege(Path(name), guarded=not flower) as siege:
        quiet = [siege.phase(seconds=QUIET * seconds, rounds=2)]
        for attack in attacks:
            beside = siege.phase(attack, seconds=seconds, timeout=seconds)
            quiet.append(siege.phase(seconds=QUIET * seconds, rounds=2))
            figures = row_of(attack, seconds, beside, quiet[-2:])
            rows.append({"superlink": superlink, **figures, **origin})
            print(rows[-1], flush=True)
    if write:
        new = {(superlink, attack) for attack in attacks}
        path = RESULTS / "siege.csv"
        add_rows(path, rows, instead=lambda row: (row["superlink"], row["attack"]) in new)


if __name__ == "__main__":
    typer.run(main)
