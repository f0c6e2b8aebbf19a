"""The commands ``fedif sweep`` and ``fedif compare``, and the options that all grids share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedif_flower.cli import cli, end_by_a_line, require_directories
from fedif_flower.errors import require

Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, help="federations at a time, a process each", show_default="cores / threads"
    ),
]
Threads = Annotated[
    int, typer.Option(min=1, help="of each federation's server; AFedSV's coalitions use several")
]
Again = Annotated[
    bool, typer.Option("--again", help="measure what is there too; the new takes its place")
]


def _expanded(folder: Path) -> Path:
    """Return a folder with the user's home in the place of ``~``.

    A shell leaves the ``~`` of ``--output-dir=~/runs`` and of a quoted path as it is.
    """
    return folder.expanduser()


OutputDir = Annotated[Path, typer.Option(help="where results go", callback=_expanded)]


def jobs_that_fit(threads: int) -> int:
    """Return how many federations with so many threads run at a time on this machine's cores."""
    cores = os.cpu_count() or 1
    return max(1, cores // threads)


def run_study(study: Callable[..., None]) -> None:
    """Run a study's function as a command-line program, with its arguments as options."""
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(study)
    end_by_a_line(program)


@cli.command()
def sweep(
    spec: Annotated[Path, typer.Argument(help="TOML: settings; lists are axes")],
    output_dir: OutputDir = Path("runs/sweeps"),
    jobs: Jobs = None,
    threads: Threads = 1,
    again: Again = False,
) -> None:
    """Run every combination of a grid of your own."""
    from fedif_flower.run.config import RunConfig
    from fedif_studies.lab.cells import find_result, remarks_on
    from fedif_studies.lab.measurements import Measurement, read_measurement
    from fedif_studies.lab.run import report_held, run_cells
    from fedif_studies.lab.spec import read_sweep, swept_keys
    from fedif_studies.lab.sweep_report import report_sweep

    cells = read_sweep(spec, RunConfig.defaults(), output_dir)
    swept = swept_keys(spec)  # Read before the cells run: somebody may edit the file meanwhile.
    jobs = jobs or jobs_that_fit(threads)
    complete = run_cells(cells, jobs, threads=threads, again=again)
    measured: dict[Path, Measurement] = {}  # By folder, since cells may share a result.
    with report_held(output_dir):
        for run_dir in filter(None, map(find_result, cells)):
            measurement = read_measurement(run_dir)
            if measurement is not None:
                measured[run_dir] = measurement
        if measured:
            name = cells[0].group
            remarks = remarks_on(cells, measured)
            folder = output_dir / name
            planned = [cell.config.to_mapping() for cell in cells]
            runs = list(measured.values())
            report_sweep(name, runs, folder, Console(), swept, remarks, planned)
    finish(complete)


@cli.command()
def compare(
    run_dirs: Annotated[list[Path], typer.Argument(help="two or more runs' folders")],
    output_dir: OutputDir = Path("runs/compare"),
) -> None:
    """Compare runs: the settings in which they differ, and their results."""
    require_directories(run_dirs)
    require(len(run_dirs) > 1, "run_dirs", len(run_dirs), "two or more runs' folders")
    from fedif_flower.run.folder import RunFolder
    from fedif_flower.run.results import load
    from fedif_studies.lab.comparison import compare as beside
    from fedif_studies.lab.comparison import names_of
    from fedif_studies.lab.curves import plot_curves
    from fedif_studies.lab.differences import other_origins, varying
    from fedif_studies.lab.measurements import Measurement, last_ten_remarks, read_measurement
    from fedif_studies.lab.pairs import pair_runs, paired_remarks, paired_table, plot_pairs
    from fedif_studies.lab.shown_figures import direction
    from fedif_studies.lab.table import write_table

    fits = not RunFolder(output_dir).holds_run()
    allowed = "a folder of no run, whose report shows pictures of the same names"
    require(fits, "output-dir", str(output_dir), allowed)
    runs = [load(run_dir) for run_dir in run_dirs]
    table = beside(runs)
    curves = output_dir / "accuracy.png"
    differences = output_dir / "differences.png"
    for earlier in (curves, differences):  # An earlier comparison in this folder left them.
        earlier.unlink(missing_ok=True)
    measured: dict[str, Measurement] = {}
    for name, run_dir in zip(names_of(runs), run_dirs, strict=True):
        measurement = read_measurement(run_dir)
        if measurement is not None:
            measured[name] = measurement
    measurements = list(measured.values())
    series = {name: [measurement] for name, measurement in measured.items()}
    pictures = []
    if plot_curves(series, curves, table.title):
        pictures.append(curves)
    more = []
    remarks = [*direction(measurements), *last_ten_remarks(measurements)]
    remarks += other_origins(measurements)
    paired = pair_runs(measurements, varying(measurements))
    if paired is not None:
        remarks += paired_remarks(paired)
        plot_pairs(paired, differences)
        pictures.append(differences)
        more.append(paired_table(paired))
    write_table(table, output_dir, Console(), remarks, pictures, more)


def finish(complete: bool) -> None:
    """End with exit status 1 unless everything is complete."""
    if not complete:
        raise typer.Exit(1)
