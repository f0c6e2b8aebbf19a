"""``fedif watch`` and ``fedif runs``: how runs are, at a glance."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from fedif_consortium.watch.listed import ListedRun

watch_cli = typer.Typer(add_completion=False)


@watch_cli.command()
def watch(
    run_dir: Annotated[Path, typer.Argument(help="a run's folder, also one copied from elsewhere")],
    to: Annotated[
        Path | None, typer.Option(help="the page; default: RUN_DIR-watch.html beside the folder")
    ] = None,
) -> None:
    """Write a page of how a run is: progress, curves, every member, and what to do.

    The page is made of the run's folder alone, and written again every few seconds until the run
    is over; a browser that shows it follows. A double click opens it. To show it to others, let a
    web server that you trust serve the file: it says who takes part.
    """
    from fedif_consortium.watch.page import keep_page
    from fedif_flower.errors import ConfigError
    from fedif_flower.run.folder import RunFolder

    folder = RunFolder(run_dir)
    if not any(file.path.is_file() for file in (folder.config, folder.rounds, folder.live)):
        raise ConfigError(f"{str(run_dir)!r} holds no run: neither config.json nor rounds.csv")
    whole = run_dir.absolute()
    page = to or whole.parent / f"{whole.name}-watch.html"
    Console().print(f"Page: {page.absolute()}", soft_wrap=True, highlight=False, markup=False)
    with suppress(KeyboardInterrupt):
        keep_page(folder, page)


@watch_cli.command()
def runs(
    directory: Annotated[Path, typer.Argument(help="where runs are, at any depth")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, for programs")] = False,
) -> None:
    """List the runs in a folder: whether each goes on, how far it is and how good."""
    import json

    from fedif_consortium.watch.listed import list_runs
    from fedif_flower.errors import ConfigError

    if not directory.is_dir():
        raise ConfigError(f"{str(directory)!r} is no directory")
    found = list_runs(directory)
    if as_json:
        typer.echo(json.dumps([vars(run) for run in found], indent=2))
    elif not found:
        raise ConfigError(f"{str(directory)!r} holds no run")
    else:
        _print_table(found)


def _print_table(found: list[ListedRun]) -> None:
    """Print a line a run; in a terminal that is too narrow for it two, the name alone on one."""
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    from fedif_consortium.watch.page import lasting

    table = Table("run", "state", "strategy", "data")
    lines: list[str] = []
    for name in ("rounds", "test", "age"):
        table.add_column(name, justify="right")
    for run in found:
        rounds, figure = f"{run.rounds} / {run.num_rounds}", run.figure.removeprefix("test ")
        row = (run.state, run.strategy, run.data, rounds, figure, lasting(run.age_seconds))
        table.add_row(*map(Text, (run.run, *row)))
        lines += [run.run, f"  {', '.join(filter(None, row))}"]
    console = Console()
    whole = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    if whole <= console.width:
        console.print(table)
    else:
        console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)
