"""``fedif run`` as it is installed: with an option of its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedif_flower.cli import Config, CpusPerClient, GpusPerClient, parse_config, run_one
from fedif_flower.run.logs import show_logs

run_cli = typer.Typer(add_completion=False)


@run_cli.command()
def run(
    config: Config = None,
    clients: Annotated[int | None, typer.Option(help="simulated clients (num-clients)")] = None,
    cpus_per_client: CpusPerClient = 1,
    gpus_per_client: GpusPerClient = 0.0,
    output_dir: Annotated[Path | None, typer.Option(help="where results go")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="serve /metrics there (metrics-port)")
    ] = None,
) -> None:
    """Simulate one federation and print its result.

    Exit status 0: complete, perhaps with gaps; 1: an error; 3: incomplete.
    """
    # First: what is wrong with a setting is said before anything slow is imported.
    options = {"num-clients": clients, "output-dir": output_dir, "metrics-port": metrics_port}
    parsed = parse_config(config, options)
    show_logs(parsed.log_format)
    run_one(parsed, cpus_per_client, gpus_per_client)
