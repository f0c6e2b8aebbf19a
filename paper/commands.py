"""The grid commands of ``simulation.py``: ``paper``, ``sweep``, ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from flwr.clientapp import ClientApp
from rich.console import Console

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import default_run_config
from fedif_flower.sweeps.engine import RayLauncher, run_cells
from fedif_flower.sweeps.measurements import find_measurements
from fedif_flower.sweeps.report import report_sweep
from fedif_flower.sweeps.spec import read_sweep
from paper.compare import fill_table
from paper.docs import update_docs
from paper.listing import list_cells, list_tables
from paper.report import report_all, report_table
from paper.selection import Selection, find_table, table_cells
from paper.tables import TABLES

OutputDir = Annotated[Path, typer.Option(help="where results go")]
DataDir = Annotated[str, typer.Option(help="where the data sets are")]
Jobs = Annotated[int | None, typer.Option(min=1, help="federations at a time; default: enough")]
CpusPerClient = Annotated[int, typer.Option(min=1, help="decides how many clients train at once")]
GpusPerClient = Annotated[float, typer.Option(min=0.0, help="share of a GPU for each client")]
Cells = Annotated[list[str] | None, typer.Option(help="only cells like 'label-noise*_fedif_*'")]


def add_commands(cli: typer.Typer, client_app: ClientApp) -> None:
    """Give a command line the commands that run grids and report on them.

    Parameters
    ----------
    cli : typer.Typer
        The command line.
    client_app : ClientApp
        The clients of every federation.
    """
    console = Console()

    @cli.command()
    def paper(
        tables: Annotated[list[str] | None, typer.Argument(help="one or more")] = None,
        show: Annotated[bool, typer.Option("--list", help="show tables and cells")] = False,
        methods: Annotated[str, typer.Option(help="rows, in order: fedif,fedavg")] = "",
        cells: Cells = None,
        seeds: Annotated[int, typer.Option(min=1, help="seeds 0 to N - 1")] = 1,
        rounds: Annotated[int | None, typer.Option(min=1, help="instead of the paper's")] = None,
        data_dir: DataDir = "",
        output_dir: OutputDir = Path("runs/paper"),
        jobs: Jobs = None,
        cpus_per_client: CpusPerClient = 1,
        gpus_per_client: GpusPerClient = 0.0,
    ) -> None:
        """Measure tables of the paper and print them beside the paper's figures."""
        chosen = [find_table(name) for name in tables or TABLES]
        rows = tuple(name.strip() for name in methods.split(",") if name.strip())
        selection = Selection(rows, tuple(cells or ()), seeds, rounds, data_dir)
        if show:
            measured = find_measurements([output_dir])
            if tables:
                for table in chosen:
                    list_cells(table, selection, measured, console)
            else:
                list_tables(chosen, measured, console)
            return
        if not tables:
            raise ConfigError(f"which table? allowed: {', '.join(TABLES)}; see --list")
        defaults = default_run_config()
        wanted = table_cells(chosen, selection, defaults, output_dir)
        if any(table.sequential for table in chosen):
            jobs = 1
        launch = RayLauncher(client_app, cpus_per_client, gpus_per_client)
        complete = run_cells(wanted, launch, console, jobs=jobs)
        measured = find_measurements([output_dir])
        for table in chosen:
            length = rounds or table.rounds
            report_table(
                table, fill_table(table, measured, defaults, length), output_dir, console, length
            )
        _finish(complete)

    @cli.command()
    def sweep(
        spec: Annotated[Path, typer.Argument(help="TOML: settings; lists are axes")],
        output_dir: OutputDir = Path("runs/sweeps"),
        jobs: Jobs = None,
        cpus_per_client: CpusPerClient = 1,
        gpus_per_client: GpusPerClient = 0.0,
    ) -> None:
        """Run every combination of a grid of your own."""
        wanted = read_sweep(spec, default_run_config(), output_dir)
        launch = RayLauncher(client_app, cpus_per_client, gpus_per_client)
        complete = run_cells(wanted, launch, console, jobs=jobs)
        own = {cell.config.run_dir.resolve() for cell in wanted}
        measured = [m for m in find_measurements([output_dir]) if m.run_dir in own]
        if measured:
            report_sweep(wanted[0].group, measured, output_dir, console)
        _finish(complete)

    @cli.command()
    def report(
        directories: Annotated[list[Path] | None, typer.Argument(help="with results")] = None,
        output_dir: OutputDir = Path("runs/report"),
        docs: Annotated[Path | None, typer.Option(help="update this docs folder instead")] = None,
    ) -> None:
        """Rebuild tables and plots from results alone."""
        for directory in directories or ():
            if not directory.is_dir():
                raise ConfigError(f"{str(directory)!r} is no directory")
        measured = find_measurements(directories or ())
        if not measured and docs is None:
            raise ConfigError("no complete run in the directories given")
        if docs is not None:
            page = update_docs(docs, measured, default_run_config())
            console.print(f"Written: {page.absolute()}", soft_wrap=True, highlight=False)
        else:
            report_all(measured, default_run_config(), output_dir, console)


def _finish(complete: bool) -> None:
    if not complete:
        raise typer.Exit(1)
