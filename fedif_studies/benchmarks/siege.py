"""By how much attacks on a SuperLink's port slow a federation's rounds and raise its memory.

The benchmark starts a SuperLink behind TLS with 1,024 file descriptors, and a run of three members
on the digits. It attacks the port in every way of :mod:`tests.integration.strangers`, one after the
other: by strangers and by a member that floods it. Before and after each attack there is a span
without one. ``--flower`` attacks Flower's own ``flower-superlink`` instead. Attackers' processes
have a low priority, since real ones would use their own hosts. ``--write`` replaces these attacks'
rows among the committed ones.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedif_studies.lab.commands import run_study
from fedif_studies.lab.lists import names_in
from fedif_studies.rows import RESULTS, Row, loaded_revision, machine, replace_rows
from tests.integration.siege import Phase, Siege
from tests.integration.strangers import ATTACKS

MIB = 2**20
QUIET = 0.5  # A span without an attack lasts this share of an attack's seconds.


def row_of(attack: str, seconds: float, beside: Phase, quiet: list[Phase]) -> dict[str, object]:
    """Return a row that compares the rounds during an attack with those before and after it.

    Parameters
    ----------
    attack : str
        The attack's name.
    seconds : float
        How long it lasted.
    beside : Phase
        The rounds during the attack.
    quiet : list of Phase
        The rounds before and after the attack, in this order.
    """
    usual = _mean_of_quiet(quiet)
    # The round that was unfinished at the end had taken the rest of the attack's time. If that is
    # longer than the mean round, it counts, and the mean is a lower bound.
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
    """Return the mean seconds of rounds without an attack; NaN if there are none."""
    seconds: list[float] = []
    for phase in quiet:
        seconds += phase.seconds
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
    # The seed is that of the federation; attackers draw nothing.
    origin = {"revision": loaded_revision(), "seed": 0, "processor": machine()["processor"]}
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
