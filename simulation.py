"""Door 3, one machine: one run, a grid of runs or a table of the paper, in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from client_app import app as client_app
from fedif_flower.errors import FedIFError
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.logs import show_logs
from fedif_flower.run.overrides import parse_overrides
from fedif_flower.run.recorder import RoundRow
from fedif_flower.run.report import print_summary
from fedif_flower.runtime.simulation import simulate
from fedif_flower.tasks.data import dirichlet_partition, load_dataset
from fedif_flower.tasks.data.export import export_partitions
from paper.commands import add_commands

cli = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)
Config = Annotated[
    list[str] | None, typer.Option("-c", "--run-config", help="KEY=VALUE ..., as for flwr run")
]


@cli.callback()
def doors() -> None:
    """Simulate federations on this machine."""


@cli.command()
def run(
    config: Config = None,
    clients: Annotated[int | None, typer.Option(help="simulated clients (num-clients)")] = None,
    cpus_per_client: Annotated[int, typer.Option(help="decides how many run at once")] = 1,
    gpus_per_client: Annotated[float, typer.Option(help="share of a GPU for each client")] = 0.0,
    output_dir: Annotated[Path | None, typer.Option(help="where results go")] = None,
) -> None:
    """Simulate one federation and print its result."""
    settings = default_run_config() | parse_overrides(" ".join(config or []))
    if clients is not None:
        settings["num-clients"] = clients
    if output_dir is not None:
        settings["output-dir"] = str(output_dir)
    parsed = RunConfig.from_run_config(settings)
    parsed = replace(parsed, output_dir=str(Path(parsed.output_dir).absolute()))
    console = Console()
    with _progress(console) as progress:
        task = progress.add_task("starting", total=parsed.num_server_rounds)

        def on_row(row: RoundRow) -> None:
            shown = "" if row.test_accuracy is None else f"test accuracy {row.test_accuracy:.1%}"
            progress.update(task, completed=row.round, description=shown)

        run_dir = simulate(
            parsed,
            client_app,
            cpus_per_client=cpus_per_client,
            gpus_per_client=gpus_per_client,
            on_row=on_row,
        )
    print_summary(run_dir, console)


@cli.command("export-partitions")
def export(
    folder: Annotated[Path, typer.Argument(help="gets a folder for each client")],
    config: Config = None,
) -> None:
    """Write a data set's partitions as folders of images, one for each SuperNode."""
    settings = default_run_config() | parse_overrides(" ".join(config or []))
    parsed = RunConfig.from_run_config(settings)
    dataset = load_dataset(parsed.dataset, parsed.data_dir)
    parts = dirichlet_partition(dataset, parsed.num_clients, parsed.dirichlet_alpha, parsed.seed)
    export_partitions(dataset, parts, folder)
    Console().print(f"{len(parts)} folders in {folder.absolute()}", soft_wrap=True)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
    )


add_commands(cli, client_app)


def main() -> None:
    """Run the command line; an error of ours is one line, not a traceback."""
    show_logs()
    try:
        cli()
    except FedIFError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", soft_wrap=True, highlight=False)
        raise SystemExit(getattr(error, "exit_code", 1)) from None


if __name__ == "__main__":
    main()
