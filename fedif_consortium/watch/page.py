"""The page of a run that is watched: one file that runs nothing and fetches nothing.

While the run goes on it is written again every few seconds, and a browser reads it again as often.
"""

from __future__ import annotations

import base64
import os
import time
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup

from fedif_consortium.page import PAGE_HEAD, templates
from fedif_consortium.watch.remarks import remarks
from fedif_consortium.watch.state import (
    NEED_ATTENTION,
    STATE_WORDS,
    Watched,
    seconds_of,
)
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.plots import plot_progress
from fedif_flower.run.results import run_title
from fedif_flower.storage import write_atomically
from fedif_flower.strategies.reports import headline

SECONDS = 5.0  # Between two writings, and two readings.
HEAD = PAGE_HEAD.replace("style-src", "img-src data:; style-src")
REFRESH = f'<meta http-equiv="refresh" content="{SECONDS:.0f}">\n'
MOST_MEMBERS = 2_000
LATEST_ROUNDS = 10


def keep_page(folder: RunFolder, file: Path) -> None:
    """Write the page of a run, and again every few seconds as long as the run goes on.

    Parameters
    ----------
    folder : RunFolder
        Of the run.
    file : Path
        The page; its links lead to the run's folder from there.

    Raises
    ------
    ConfigError
        If the records cannot be read.
    """
    start = os.path.relpath(folder.path.resolve(), file.resolve().parent)
    prefix = "" if start == "." else f"{Path(start).as_posix()}/"
    while True:
        run = Watched(folder)
        write_atomically(file, render(run, folder=prefix))
        if not run.is_running:
            return
        time.sleep(SECONDS)


def render(run: Watched, *, folder: str = "") -> str:
    """Return the page.

    Parameters
    ----------
    run : Watched
        The run at a moment.
    folder : str
        Where the run's folder is, seen from the page: links begin with it.
    """
    known = {"strategy", "dataset"} <= run.config.keys()
    title = run_title(run.config) if known else run.folder.path.name
    members, own = run.members[:MOST_MEMBERS], run.folder
    there = {"Report": own.report, "Statement": own.statement / "statement.html"}
    states = {member.state for member in run.members}
    return (
        _environment()
        .get_template("watch.html.md")
        .render(
            head=Markup(HEAD + REFRESH if run.is_running else HEAD),
            title=title,
            run=run,
            remarks=remarks(run),
            pictures=_pictures(run, title),
            members=members,
            attention=sum(member.state in NEED_ATTENTION for member in run.members),
            words={state: words for state, words in STATE_WORDS.items() if state in states},
            attributed=any(member.contribution is not None for member in members),
            scored=any(member.weight_score is not None for member in members),
            latest=run.rounds[: -LATEST_ROUNDS - 1 : -1],
            links={
                name: quote(folder + path.relative_to(own.path).as_posix())
                for name, path in there.items()
                if path.is_file()
            },
        )
    )


def _pictures(run: Watched, title: str) -> dict[str, str]:
    """Return the report's pictures as data URLs, by name; before it, what it shows of progress."""
    with TemporaryDirectory() as scratch:
        drawn = run.folder if run.summary else RunFolder(scratch)
        if run.rounds and not run.summary:
            plot_progress(run.rounds, drawn, title)
        progress = drawn.accuracy_picture, drawn.metric_picture
        return {
            path.stem.replace("-", " "): f"data:image/png;base64,{_base64(path)}"
            for path in (*progress, drawn.attribution_picture, drawn.score_picture)
            if path.is_file()
        }


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = templates().overlay(trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        moment=_moment, lasting=lasting, seconds_of=seconds_of, headline=headline
    )
    return environment


def _moment(seconds: float) -> str:
    """Return a time since 1970 as a date and a time of day."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return "at no time"


def lasting(seconds: float) -> str:
    """Return how long something lasts, in its largest unit."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"
