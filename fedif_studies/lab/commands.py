"""The commands ``fedif sweep`` and ``fedif compare``, and what the commands of grids share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedif_flower.cli import cli, require_directories

Jobs = Annotated[
    int,
    typer.Option(min=1, help="federations at a time, a process each", show_default="cores"),
]
Again = Annotated[
    bool, typer.Option("--again", help="measure what is there too; the new takes its place")
]
CORES = os.cpu_count() or 1
OutputDir = Annotated[Path, typer.Option(help="where results go")]


@cli.command()
def sweep(
    spec: Annotated[Path, typer.Argument(help="TOML: settings; lists are axes")],
    output_dir: OutputDir = Path("runs/sweeps"),
    jobs: Jobs = CORES,
    again: Again = False,
) -> None:
    """Run every combination of a grid of your own."""
    from fedif_flower.run.config import RunConfig
    from fedif_studies.lab.cells import find_result
    from fedif_studies.lab.comparison import report_sweep
    from fedif_studies.lab.measurements import read_measurement
    from fedif_studies.lab.run import run_cells
    from fedif_studies.lab.spec import read_sweep, swept_keys

    wanted = read_sweep(spec, RunConfig.defaults(), output_dir)
    complete = run_cells(wanted, jobs, again=again)
    found = dict.fromkeys(run_dir for cell in wanted if (run_dir := find_result(cell)))
    if measured := [one for run_dir in found if (one := read_measurement(run_dir))]:
        name = wanted[0].group
        report_sweep(name, measured, output_dir / name, Console(), swept_keys(spec))
    finish(complete)


@cli.command()
def compare(
    run_dirs: Annotated[list[Path], typer.Argument(help="two or more runs' folders")],
    output_dir: OutputDir = Path("runs/compare"),
) -> None:
    """Put runs beside each other: what differs in their settings, and what came of it."""
    require_directories(run_dirs)
    from fedif_flower.run.results import load
    from fedif_studies.lab.comparison import compare as beside
    from fedif_studies.lab.comparison import names_of
    from fedif_studies.lab.curves import plot_curves
    from fedif_studies.lab.measurements import read_measurement
    from fedif_studies.lab.table import write_table

    runs = [load(run_dir) for run_dir in run_dirs]
    table, picture = beside(runs), output_dir / "accuracy.png"
    measured = zip(names_of(runs), map(read_measurement, run_dirs), strict=True)
    series = {name: [found] for name, found in measured if found is not None}
    plot_curves(series, picture, table.title)
    write_table(table, output_dir, Console(), [], [picture])


def finish(complete: bool) -> None:
    """End with exit status 1 unless everything is complete."""
    if not complete:
        raise typer.Exit(1)
