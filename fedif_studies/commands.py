"""The command ``fedif`` as it is installed, with the subcommands of all three packages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedif_consortium.commands.every import add_commands
from fedif_consortium.extra import needs_extra
from fedif_flower.cli import Config, RunDir, cli, door, main, parse_config, require_directories
from fedif_flower.tables import print_line
from fedif_studies.lab.commands import Again, OutputDir, compare, finish, sweep
from fedif_studies.paper.commands import paper, report

__all__ = ["arena", "audit", "cli", "compare", "main", "paper", "report", "sweep", "unlearn"]

add_commands(cli)
door.parts = "fedif_consortium.parts:run_parts"
door.client_parts = "fedif_consortium.parts:client_parts"


@cli.command()
@needs_extra  # A bout's row has figures by what a statement on it would count.
def arena(
    dataset: Annotated[str, typer.Option(help="digits, or any data set of images")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where its files are")] = "",
    strategies: Annotated[
        str, typer.Option(help="of the arena or of `fedif list`: FedAvg,Krum")
    ] = "",
    attacks: Annotated[str, typer.Option(help="of the arena or of `fedif list`: ALIE,mimic")] = "",
    shares: Annotated[str, typer.Option(help="of malicious clients; default: 0.1,0.2,0.4")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ...")] = 3,
    output: Annotated[Path, typer.Option(help="the rows, *.csv")] = Path("runs/arena/arena.csv"),
    page: Annotated[
        Path | None, typer.Option(help="the tables, *.md; default: beside the rows")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="bouts at a time, a process each")] = 1,
    again: Again = False,
) -> None:
    """Set every strategy, with bounds and without, against every attack; a row for each bout.

    Without --attacks and --shares every attack is made at 20 %, and nine of them at 10 and 40 %.
    """
    from fedif_flower.run.rows import read_rows
    from fedif_studies.arena.bouts import bouts, name_of_data, play, setup
    from fedif_studies.arena.tables import missing_bouts, worst_cases, write_tables
    from fedif_studies.rows import held_alone

    data = name_of_data(dataset, data_dir)
    all_bouts = bouts(data, range(seeds), strategies, attacks, shares)
    complete = play(output, all_bouts, setup(dataset, data_dir), jobs, again=again)
    page = page or output.with_suffix(".md")
    # The rows are read under the lock. Otherwise another process, which has written its tables
    # meanwhile, would lose them to tables of older rows.
    with held_alone(page):
        rows = read_rows(output)
        write_tables(page, rows)
    console = Console()
    worst_cases(rows, data).print(console)
    for line in filter(None, missing_bouts(rows, data)):
        print_line(console, line)
    print_line(console, f"Page: {page.absolute()}")
    finish(complete)


@cli.command()
def audit(
    config: Config = None,
    output_dir: OutputDir = Path("runs/audit"),
    seeds: Annotated[int, typer.Option(min=1, help="trainings of each federation")] = 5,
    images: Annotated[
        int, typer.Option(min=0, help="training images, and half as many test images; 0: all")
    ] = 0,
    retrain: Annotated[
        bool, typer.Option(help="also train every coalition from scratch: 2^members federations")
    ] = True,
    cases: Annotated[
        list[str] | None, typer.Option("--case", help="of the page; default: all of them")
    ] = None,
    again: Again = False,
) -> None:
    """Measure which valuations are right: agreement, removal, detection, manipulation."""
    from fedif_flower.errors import require
    from fedif_studies.audit.cases import CASES
    from fedif_studies.audit.measure import measure
    from fedif_studies.audit.members import AUDITED, AuditTask, require_read
    from fedif_studies.audit.page import write_audit
    from fedif_studies.rows import held_alone

    parsed = parse_config([AUDITED, *(config or [])], {})
    require_read(parsed)
    for case in cases or ():
        require(case in CASES, "case", case, ", ".join(CASES))
    task = AuditTask(parsed, images)
    folder = output_dir.absolute()
    chosen = cases or tuple(CASES)
    complete = measure(task, folder, cases=chosen, seeds=seeds, retrain=retrain, again=again)
    with held_alone(folder):
        page = write_audit(folder, task.config)
    print_line(Console(), f"Audit: {page}")
    finish(complete)


@cli.command()
def unlearn(
    run_dir: RunDir,
    small: Annotated[
        float, typer.Option(help="a mask below this share of the median one is a trigger's")
    ] = 0.5,
) -> None:
    """Remove a backdoor with a trigger from a run's model, with the run's held-out images."""
    require_directories([run_dir])
    from fedif_studies.backdoors.unlearning import unlearn_run

    unlearned = unlearn_run(run_dir, small=small)
    console = Console(highlight=False, soft_wrap=True)
    for trigger in unlearned.found:
        verdict = "A trigger" if trigger.is_trigger else "No more triggers"
        mask = f"the mask of class {trigger.label} covers {trigger.share:.2f} of the median one"
        console.print(f"{verdict}: {mask}")
    if unlearned.path is None:
        console.print("The model was left as it is.")
        return
    if unlearned.found[-1].is_trigger:
        console.print(f"The last of {len(unlearned.found)} passes still found a trigger.")
    figures = {
        "Accuracy on the validation split": unlearned.validation,
        "Accuracy on the test split": unlearned.test,
    }
    if unlearned.attack_success is not None:
        figures["Attack success rate"] = unlearned.attack_success
    for name, (before, after) in figures.items():
        console.print(f"{name}: {before:.1%} before, {after:.1%} after")
    print_line(console, f"Model: {unlearned.path.absolute()}")
