"""The command ``fedif`` as it is installed: those of all three packages."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.console import Console

from fedif_consortium.commands.every import add_commands
from fedif_flower.cli import Config, cli, door, main, parse_config
from fedif_studies.lab.commands import (
    Jobs,
    OutputDir,
    compare,
    finish,
    going_on,
    launcher,
    sweep,
)
from fedif_studies.paper.commands import paper, report

__all__ = ["arena", "audit", "cli", "compare", "main", "paper", "report", "sweep"]

add_commands(cli)
door.parts, door.client_parts = (
    "fedif_consortium.parts:run_parts",
    "fedif_consortium.parts:client_parts",
)


@cli.command()
def arena(
    dataset: Annotated[str, typer.Option(help="digits, or any data set of images")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where its files are")] = "",
    strategies: Annotated[
        str, typer.Option(help="of the page or of `fedif list`: FedAvg,Krum")
    ] = "",
    attacks: Annotated[str, typer.Option(help="of the page or of `fedif list`: ALIE,mimic")] = "",
    shares: Annotated[str, typer.Option(help="of malicious clients; default: 0.1,0.2,0.4")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ...")] = 3,
    output_dir: OutputDir = Path("runs/arena"),
    page: Annotated[
        Path | None, typer.Option(help="the page, *.md; default: arena.md beside the results")
    ] = None,
    jobs: Jobs = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="one client after the other, without Ray")
    ] = False,
) -> None:
    """Set every strategy against every attack; write a page with a heat map.

    Without --attacks and --shares every attack is made at 20 %, and nine of them at 10 and 40 %.
    """
    from fedif_flower.client.app import app
    from fedif_flower.errors import require
    from fedif_flower.run.config import default_run_config
    from fedif_studies.arena.experiments import arena_cells, choose_experiments, find_setup
    from fedif_studies.arena.figures import measured
    from fedif_studies.arena.page import about, headline, write_page
    from fedif_studies.lab.engine import LocalLauncher, run_cells

    require(not in_process or jobs in (None, 1), "--jobs", jobs, "1 with --in-process")
    console = Console()
    wanted = choose_experiments(strategies, attacks, shares)
    setup = find_setup(dataset, data_dir)
    cells = arena_cells(wanted, seeds, default_run_config(), output_dir, setup)
    launch = LocalLauncher(app) if in_process else launcher(1, 0.0)
    complete = run_cells(list(cells.values()), launch, console, jobs=1 if in_process else jobs)
    found = measured(cells)
    path = page or output_dir / "arena.md"
    given = {"data-dir": data_dir and "DIR", "strategies": strategies, "attacks": attacks}
    given |= {"dataset": "" if dataset == "digits" else dataset, "shares": shares}
    given |= {"seeds": "" if seeds == 3 else str(seeds)}
    options = [f"--{name} {quote(value)}" for name, value in given.items() if value]
    command = " ".join(["fedif arena", *options, *(["--in-process"] if in_process else [])])
    write_page(found, path, setup.title, about(setup, wanted, seeds, command))
    headline(found).print(console)
    console.print(f"Page: {path.absolute()}", soft_wrap=True, highlight=False)
    finish(complete)


@cli.command()
def audit(
    config: Config = None,
    output_dir: OutputDir = Path("runs/audit"),
    seeds: Annotated[int, typer.Option(min=1, help="trainings of each federation")] = 5,
    retrain: Annotated[
        bool, typer.Option(help="also train every coalition from scratch: 2^members federations")
    ] = True,
    cases: Annotated[
        list[str] | None, typer.Option("--case", help="of the page; default: all of them")
    ] = None,
) -> None:
    """Measure which valuations are right: agreement, removal, detection, manipulation."""
    from fedif_flower.devices import torch_threads
    from fedif_flower.errors import require
    from fedif_studies.audit.cases import CASES
    from fedif_studies.audit.measure import Measurements, measure
    from fedif_studies.audit.members import AUDITED, AuditTask
    from fedif_studies.audit.page import write_audit

    console = Console()
    parsed = parse_config([AUDITED, *(config or [])], {})
    for case in cases or ():
        require(case in CASES, "case", case, ", ".join(CASES))
    measurements = Measurements(output_dir.expanduser().absolute(), parsed)
    with going_on(), torch_threads(1):  # Models as small as these are slower on more.
        task = AuditTask(parsed)
        chosen = tuple(cases or CASES)
        measure(task, measurements, console, cases=chosen, seeds=seeds, retrain=retrain)
    console.print(f"Audit: {write_audit(measurements, task.config)}", soft_wrap=True)
