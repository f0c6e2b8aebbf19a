"""``fedif watch`` and ``fedif runs``: the state of one run on a page, and a list of runs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console


def watch(
    run_dir: Annotated[Path, typer.Argument(help="a run's folder, also one copied from elsewhere")],
    to: Annotated[
        Path | None,
        typer.Option(help="the page, *.html; default: RUN_DIR-watch.html beside the folder"),
    ] = None,
) -> None:
    """Write a page that shows a run: progress, curves, every member, and what to do.

    The page is made from the run's folder alone. It is rewritten every few seconds until the run is
    over, and a browser that shows it reloads it. A double click opens it. To show it to others, let
    a web server that you trust serve the file: it says who takes part.
    """
    from fedif_consortium.watch.page import keep_page
    from fedif_consortium.watch.state import holds_run
    from fedif_flower.errors import ConfigError, require
    from fedif_flower.run.folder import RunFolder

    folder = RunFolder(run_dir)
    if not holds_run(folder):
        raise ConfigError(f"{str(run_dir)!r} holds no run: neither its config.json nor rounds.csv")
    absolute = run_dir.absolute()  # Path(".") has no name, its absolute path has one.
    # The suffix is required, so that the page never overwrites one of the run's records.
    is_page = to is None or to.suffix == ".html"
    require(is_page, "to", str(to), "a page, *.html")
    page = to or absolute.parent / f"{absolute.name}-watch.html"
    typer.echo(f"Page: {page.absolute()}")
    with suppress(KeyboardInterrupt):
        keep_page(folder, page)


def runs(
    directory: Annotated[Path, typer.Argument(help="where runs are, at any depth")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, for programs")] = False,
) -> None:
    """List the runs in a folder: the state of each, its rounds and its result."""
    import json

    from fedif_consortium.watch.state import holds_run
    from fedif_flower.errors import ConfigError
    from fedif_flower.run.folder import RunFolder
    from fedif_flower.tables import ResultTable

    rows = []
    for path, folders, _ in os.walk(directory):
        if holds_run(RunFolder(Path(path))):
            folders.clear()  # Folders inside a run's folder belong to that run.
            rows.append({"run": os.path.relpath(path, directory), **_row_of(Path(path))})
    if not rows:
        raise ConfigError(f"{str(directory)!r} holds no run")
    rows.sort(key=lambda row: row["age_seconds"])
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    ResultTable.of_records(rows).print(Console())


def _row_of(path: Path) -> dict[str, Any]:
    """Return a run's cells in the list; if its files cannot be read, its state says why."""
    from fedif_consortium.watch.state import Watched
    from fedif_flower.errors import ConfigError
    from fedif_flower.foreign import refused_as
    from fedif_flower.run.folder import RunFolder

    try:
        with refused_as(ConfigError, f"{path} cannot be read"):
            run = Watched(RunFolder(path))
            return {
                "state": run.state,
                "strategy": str(run.config.get("strategy", "")),
                "rounds": run.last_round,
                "num_rounds": run.num_rounds,
                "result": run.figure,
                "age_seconds": max(run.now - run.last_sign, 0.0),
            }
    except ConfigError as error:
        return {
            "state": str(error),
            "strategy": "",
            "rounds": "",
            "num_rounds": "",
            "result": "",
            "age_seconds": 0.0,
        }
