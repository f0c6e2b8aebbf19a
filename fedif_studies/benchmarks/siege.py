"""What strangers and a flooding member cost a federation's rounds, and its SuperLink's memory.

``--write`` adds to the committed rows. It starts a SuperLink behind TLS with 1,024 descriptors and
a run of three members on the digits, and attacks the port in every way of
:mod:`tests.integration.strangers`, one after the other, each between two spans in which nobody
attacks. ``--flower`` does so with Flower's own ``flower-superlink``. Attackers have a low
priority: they would have hosts of their own.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedif_studies.lab.commands import run_study
from fedif_studies.lab.lists import names_in
from fedif_studies.rows import RESULTS, Row, machine, replace_rows, revision
from tests.integration.siege import Phase, Siege
from tests.integration.strangers import ATTACKS

MIB = 2**20
QUIET = 0.5  # A span in which nobody attacks lasts this share of an attack's seconds.


def row_of(attack: str, seconds: float, beside: Phase, quiet: list[Phase]) -> dict[str, object]:
    """Return one line: the rounds beside an attack and those around it."""
    usual = _mean_of_quiet(quiet)
    # The round that did not end took what is left of the attack, at least.
    unfinished = seconds - sum(beside.seconds)
    if beside.seconds and unfinished <= statistics.mean(beside.seconds):
        mean = statistics.mean(beside.seconds)
        times = f"{mean / usual:.2f}"
    else:
        mean = statistics.mean([*beside.seconds, unfinished])
        times = f"> {mean / usual:.2f}"
    return {
        "attack": attack,
        "seconds": seconds,
        "rounds": len(beside.seconds),
        "round-seconds": round(mean, 2),
        "usual-round-seconds": round(usual, 2),
        "times": times,
        "peak-mib": beside.peak // MIB,
        "usual-peak-mib": quiet[0].peak // MIB,
        "attacker": json.dumps(beside.found[attack]),
    }


def _mean_of_quiet(quiet: list[Phase]) -> float:
    """Return the mean seconds of the rounds in which nobody attacked; NaN without any."""
    seconds = list(itertools.chain.from_iterable(phase.seconds for phase in quiet))
    if not seconds:
        return math.nan
    return statistics.mean(seconds)


def main(
    seconds: Annotated[float, typer.Option(help="of each attack")] = 60.0,
    only: Annotated[str, typer.Option(help="attacks, by commas; empty: all")] = "",
    flower: Annotated[bool, typer.Option(help="Flower's own SuperLink")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Measure, and print a line for each attack."""
    attacks = names_in("only", only, ATTACKS) if only else list(ATTACKS)
    superlink = "Flower's" if flower else "behind nginx"
    # The seed is the federation's own; when attackers knock is nobody's draw.
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

        def is_measured_again(row: Row) -> bool:
            return row["superlink"] == superlink and row["attack"] in attacks

        replace_rows(RESULTS / "siege.csv", rows, is_measured_again)


if __name__ == "__main__":
    run_study(main)
