"""The page of a run that is watched: one file that runs nothing and fetches nothing.

While the run goes on it is written again every few seconds, and a browser reads it again as often.
"""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from markupsafe import Markup

from fedif_consortium.page import PAGE_HEAD, templates
from fedif_consortium.watch.remarks import remarks
from fedif_consortium.watch.state import NEED_ATTENTION, STATE_WORDS, Watched, seconds_of
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.plots import plot_progress
from fedif_flower.run.results import run_title
from fedif_flower.server.record import headline
from fedif_flower.storage import write_atomically

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
    seen_from = os.path.relpath(folder.path.resolve(), file.resolve().parent)
    while True:
        run = Watched(folder)
        with refused_as(ConfigError, f"{folder.path} cannot be shown"):
            write_atomically(file, render(run, folder=seen_from))
        if not run.is_running:
            return
        time.sleep(SECONDS)


def render(run: Watched, *, folder: str = ".") -> str:
    """Return the page.

    Parameters
    ----------
    run : Watched
        The run at a moment.
    folder : str
        Where the run's folder is, seen from the page: links begin with it.
    """
    title = str(run.summary.get("title") or run.folder.path.name)
    if run.config:
        title = run_title(run.config)
    members, states = run.members[:MOST_MEMBERS], [member.state for member in run.members]
    own = run.folder
    there = {"Report": own.report, "Statement": own.statement / "statement.html"}
    page = templates().overlay(trim_blocks=True, lstrip_blocks=True).get_template("watch.html.md")
    return page.render(
        head=Markup(HEAD + REFRESH if run.is_running else HEAD),
        title=title,
        run=run,
        remarks=remarks(run),
        pictures=_pictures(run, title),
        members=members,
        attention=sum(state in NEED_ATTENTION for state in states),
        words={state: words for state, words in STATE_WORDS.items() if state in states},
        attributed=any(member.contribution is not None for member in members),
        scored=any(member.weight_score is not None for member in members),
        latest=run.rounds[: -LATEST_ROUNDS - 1 : -1],
        links={
            name: quote(f"{folder}/{path.relative_to(own.path).as_posix()}")
            for name, path in there.items()
            if path.is_file()
        },
        moment=lambda seconds: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)),
        lasting=lasting,
        seconds_of=seconds_of,
        headline=headline,
    )


def _pictures(run: Watched, title: str) -> dict[str, str]:
    """Return the report's pictures as data URLs, by name; before it, what it shows of progress."""
    with TemporaryDirectory() as scratch:
        drawn = run.folder if run.summary else RunFolder(scratch)
        if run.rounds and not run.summary:
            plot_progress(run.rounds, drawn, title)
        return {
            path.stem.replace("-", " "): "data:image/png;base64,"
            + base64.b64encode(path.read_bytes()).decode()
            for path in drawn.pictures.values()
            if path.is_file()
        }


def lasting(seconds: float) -> str:
    """Return how long something lasts, in its largest unit."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"
