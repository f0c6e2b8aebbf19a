"""``fedif watch`` and ``fedif runs``: how runs are, at a glance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from fedif_consortium.watch.listed import ListedRun
    from fedif_flower.run.folder import RunFolder

watch_cli = typer.Typer(add_completion=False)


@watch_cli.command()
def watch(
    run_dir: Annotated[Path, typer.Argument(help="a run's folder, also one copied from elsewhere")],
    host: Annotated[
        str, typer.Option(help="address to listen on; other machines must show a token")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 0,
    token: Annotated[
        bool, typer.Option("--token", help="ask this machine for a token too: behind a web server")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="write the page to this file, and serve nothing")
    ] = None,
) -> None:
    """Show how a run is on a page: progress, curves, every member, and what to do.

    The page is made of the run's folder alone, while the run goes on and after it, and keeps
    itself up to date. Only this machine reaches it, and yours by an SSH tunnel. With --host others
    do, who show the token that is printed once. It travels in the clear: a web server with TLS in
    front, and --token here, is better.
    """
    from fedif_flower.errors import ConfigError
    from fedif_flower.run.folder import RunFolder

    folder = RunFolder(run_dir)
    if not any(file.path.is_file() for file in (folder.config, folder.rounds, folder.live)):
        raise ConfigError(f"{str(run_dir)!r} holds no run: neither config.json nor rounds.csv")
    console = Console()
    if write is not None:
        write_page(folder, write)
        console.print(f"Page: {write.absolute()}", soft_wrap=True, highlight=False, markup=False)
        return
    from fedif_consortium.watch.server import WatchServer

    server = WatchServer(folder, host, port, guarded=token)
    announce(server.url, console)
    server.serve()


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


@contextmanager
def watching(run_dir: Path, console: Console) -> Iterator[None]:
    """Serve the page of a run while this process carries it out."""
    from fedif_consortium.watch.server import WatchServer
    from fedif_flower.run.folder import RunFolder

    server = WatchServer(RunFolder(run_dir))
    with server.in_background():
        announce(server.url, console)
        yield
    console.print(f"Watch it again: fedif watch {run_dir}", soft_wrap=True, highlight=False)


def announce(url: str, console: Console) -> None:
    """Say where the page is, and open it where there is a desktop."""
    import os
    import sys
    import webbrowser

    console.print(f"Watch: {url}", soft_wrap=True, highlight=False, markup=False)
    desktop = sys.platform in ("darwin", "win32") or os.environ.keys() & {
        "DISPLAY",
        "WAYLAND_DISPLAY",
    }
    if console.is_terminal and desktop:
        webbrowser.open(url)


def write_page(folder: RunFolder, file: Path) -> None:
    """Write the page of a run as it is now."""
    import time

    from fedif_consortium.watch.page import render_file
    from fedif_consortium.watch.reader import RunReader
    from fedif_consortium.watch.state import Watched
    from fedif_flower.storage import write_atomically

    run = Watched(RunReader(folder).read(), time.time())
    write_atomically(file, render_file(run, folder.path, file))


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
