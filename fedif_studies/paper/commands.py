"""The commands ``fedif paper`` and ``fedif report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedif_flower.cli import cli, require_directories
from fedif_flower.errors import require
from fedif_flower.tables import print_line
from fedif_studies.lab.commands import (
    Again,
    Jobs,
    OutputDir,
    Threads,
    finish,
    jobs_that_fit,
)

Cells = Annotated[list[str] | None, typer.Option(help="only cells like 'label-noise*_fedif_*'")]


@cli.command()
def paper(
    tables: Annotated[list[str] | None, typer.Argument(help="one or more")] = None,
    show: Annotated[bool, typer.Option("--list", help="show tables and cells")] = False,
    methods: Annotated[str, typer.Option(help="rows, in order: fedif,fedavg")] = "",
    cells: Cells = None,
    seeds: Annotated[int, typer.Option(min=1, help="seeds 0 to N - 1")] = 1,
    rounds: Annotated[int | None, typer.Option(min=1, help="instead of the paper's")] = None,
    data_dir: Annotated[str, typer.Option(help="where the data sets are")] = "",
    output_dir: OutputDir = Path("runs/paper"),
    jobs: Jobs = None,
    threads: Threads = 1,
    device: Annotated[str, typer.Option(help="of every cell: cpu, cuda; default: auto")] = "",
    again: Again = False,
) -> None:
    """Measure tables of the paper and print them beside the paper's figures."""
    from fedif_flower.devices import select_device
    from fedif_flower.run.config import RunConfig
    from fedif_studies.lab.measurements import find_measurements
    from fedif_studies.lab.run import report_held, run_cells
    from fedif_studies.paper.cells import cell_name, fill_table, select, table_cells
    from fedif_studies.paper.report import report_table
    from fedif_studies.paper.tables import TABLES

    for name in tables or ():
        require(name in TABLES, "table", name, ", ".join(TABLES))
    chosen = [TABLES[name] for name in tables or TABLES]
    rows = [name.strip() for name in methods.split(",") if name.strip()]
    places = [(table, select(table, rows, cells or (), seeds)) for table in chosen]
    if show:
        for table, places_of_table in places:
            typer.echo(f"{table.name}: {table.title}")
            for place in places_of_table:
                typer.echo(f"  {cell_name(*place)}")
        return
    require(bool(tables), "TABLES", "", f"{', '.join(TABLES)}; see --list")
    defaults = RunConfig.defaults()
    if device:
        defaults["device"] = device
    is_timed = any(table.is_timed for table in chosen)
    if is_timed:
        require(threads == 1, "threads", threads, "1 for a table of seconds, which it compares")
    # A device that is not there shall be an error before any data is read.
    select_device(RunConfig.from_run_config(defaults).device)
    to_run = table_cells(places, defaults, output_dir, rounds, data_dir)
    jobs = jobs or jobs_that_fit(threads)
    # Cells that ran at the same time would slow each other down.
    if is_timed:
        jobs = 1
    complete = run_cells(to_run, jobs, threads=threads, again=again)
    console = Console()
    with report_held(output_dir):
        measured = find_measurements([output_dir])
        for table in chosen:
            length = rounds or table.rounds
            filled = fill_table(table, measured, defaults, length)
            report_table(table, filled, output_dir, console, length)
    finish(complete)


@cli.command()
def report(
    directories: Annotated[list[Path] | None, typer.Argument(help="with results")] = None,
    docs: Annotated[Path, typer.Option(help="with results.md and results/")] = Path("docs"),
) -> None:
    """Add complete runs to the rows of docs/results, and write tables and pictures anew."""
    from fedif_flower.run.config import RunConfig
    from fedif_studies.audit.results import AUDIT_PAGE, update_audit_page
    from fedif_studies.lab.measurements import find_measurements
    from fedif_studies.paper.results_page import update_docs, what_was_added
    from fedif_studies.rows import begin_of, end_of

    require_directories([docs, *(directories or [])])
    path = docs / "results.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    has_marks = -1 < text.find(begin_of("results")) < text.find(end_of("results"))
    allowed = "a folder with results.md, which has marks for the tables"
    require(has_marks, "docs", str(docs), allowed)
    measurements = find_measurements(directories or ())
    defaults = RunConfig.defaults()
    page = update_docs(docs, measurements, defaults)
    if (docs / "results" / AUDIT_PAGE).is_file():
        update_audit_page(docs)
    console = Console()
    for line in what_was_added(measurements, directories or (), defaults):
        print_line(console, line)
    print_line(console, f"Written: {page.absolute()}")
