"""Audit 2: members known to be bad, cost beside fidelity, and objectives.

``python -m fedif_studies.audit truth`` and ``target`` measure what ``docs/audit/truth.csv``,
``target.csv`` and ``objectives.csv`` have not yet; ``page`` puts the tables into
``docs/audit/index.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedif_flower.cli import Config, parse_config
from fedif_flower.devices import torch_threads
from fedif_flower.errors import require
from fedif_flower.run.rows import read_rows
from fedif_studies.audit.cases import RETRAINED
from fedif_studies.audit.measure import Measurements, retrain_coalitions
from fedif_studies.audit.members import AUDITED, AuditTask
from fedif_studies.audit.tables import AUDIT, OBJECTIVE_ROWS, TARGET_ROWS, TRUTH_ROWS, write_page
from fedif_studies.audit.target import ObjectiveLine, TargetLine, ceiling_lines, target_lines
from fedif_studies.audit.truth import TRUTHS, TruthLine, truth_lines
from fedif_studies.rows import append_rows

cli = typer.Typer(help=__doc__, add_completion=False)
Data = Annotated[str, typer.Option(help="what the rows call the data")]
Seeds = Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ...")]
DIGITS = 6  # Of a figure.


@cli.command()
def truth(
    config: Config = None,
    data: Data = "digits",
    per_round: Annotated[int, typer.Option(min=1, help="members of a round")] = 10,
    seeds: Seeds = 3,
    cases: Annotated[
        list[str] | None, typer.Option("--case", help=f"default: {', '.join(TRUTHS)}")
    ] = None,
) -> None:
    """Find members known to be bad, and leave out the lowest valued."""
    parsed = parse_config([AUDITED, *(config or [])], {})
    count, console = str(parsed.num_clients), Console()
    for case in cases or ():
        require(case in TRUTHS, "case", case, ", ".join(TRUTHS))
    with torch_threads(1):
        for seed in range(seeds):
            task = AuditTask(parsed.replace(seed=seed))
            for case in cases or TRUTHS:
                rows = read_rows(TRUTH_ROWS)
                done = {(r["data"], r["members"], r["case"], r["seed"]) for r in rows}
                if (data, count, case, str(seed)) not in done:
                    found = list(truth_lines(task, data, case, seed, per_round))
                    append_rows(TRUTH_ROWS, TruthLine._fields, found, digits=DIGITS)
                    console.print(f"{data}, {count} members, {case}, seed {seed}: measured")


@cli.command()
def target(
    config: Config = None,
    data: Data = "digits",
    seeds: Seeds = 3,
    audit: Annotated[
        Path | None, typer.Option(help="a folder of `fedif audit`: also retrain all coalitions")
    ] = None,
) -> None:
    """Measure cost, agreement with what a valuation may be after, and values by objective."""
    parsed = parse_config([AUDITED, *(config or [])], {})
    console = Console()
    with torch_threads(1):
        task = AuditTask(parsed)
        measured = Measurements(audit, parsed) if audit else None
        for case in RETRAINED:
            own = []
            if measured is not None:
                for seed in range(seeds):
                    retrain_coalitions(task, measured, console, case, seed)
                own = [line for line in measured.retrained() if line.case == case]
            done = {(r["data"], r["case"], r["seed"]) for r in read_rows(TARGET_ROWS)}
            for seed in range(seeds):
                if (data, case, str(seed)) not in done:
                    lines, values = target_lines(task, data, case, seed, own)
                    lines += [one for one in ceiling_lines(data, case, own) if one.seed == seed]
                    append_rows(OBJECTIVE_ROWS, ObjectiveLine._fields, values, digits=DIGITS)
                    append_rows(TARGET_ROWS, TargetLine._fields, lines, digits=DIGITS)
                    console.print(f"{data}, {case}, seed {seed}: measured")


@cli.command()
def page() -> None:
    """Put the tables into the page."""
    write_page(AUDIT / "index.md")


if __name__ == "__main__":
    cli()
