"""The page of ``fedif watch``: one HTML file that runs no script and fetches nothing.

While the run goes on, the page is rewritten every few seconds, and a browser reloads it as often.
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

SECONDS = 5.0  # The page is written, and reloaded by a browser, this often.
HEAD = PAGE_HEAD.replace("style-src", "img-src data:; style-src")
REFRESH = f'<meta http-equiv="refresh" content="{SECONDS:.0f}">\n'
MOST_MEMBERS = 2_000
LATEST_ROUNDS = 10


def keep_page(folder: RunFolder, file: Path) -> None:
    """Write the page of a run, again every few seconds, and return when the run has ended.

    Parameters
    ----------
    folder : RunFolder
        The run's folder.
    file : Path
        Where the page is written; its links into the run's folder are relative to it.

    Raises
    ------
    ConfigError
        If the run's records cannot be read or shown.
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
    """Return the page as HTML.

    Parameters
    ----------
    run : Watched
        The run as its records are now.
    folder : str
        Path from the page's folder to the run's folder; links begin with it.
    """
    if run.config:
        title = run_title(run.config)
    else:
        title = str(run.summary.get("title") or run.folder.path.name)
    head = HEAD
    if run.is_running:
        head += REFRESH
    members = run.members[:MOST_MEMBERS]
    states = [member.state for member in run.members]
    latest_first = run.rounds[::-1]
    page = templates().overlay(trim_blocks=True, lstrip_blocks=True).get_template("watch.html.md")
    return page.render(
        head=Markup(head),
        title=title,
        run=run,
        remarks=remarks(run),
        pictures=_pictures(run, title),
        members=members,
        attention=sum(1 for state in states if state in NEED_ATTENTION),
        words={state: words for state, words in STATE_WORDS.items() if state in states},
        attributed=any(member.contribution is not None for member in members),
        scored=any(member.weight_score is not None for member in members),
        latest=latest_first[:LATEST_ROUNDS],
        links=_links(run.folder, folder),
        moment=_moment,
        duration_words=duration_words,
        seconds_of=seconds_of,
        headline=headline,
    )


def _links(folder: RunFolder, seen_from: str) -> dict[str, str]:
    """Return links to the run's report and statement, by name; a file that is missing has none."""
    pages = {"Report": folder.report, "Statement": folder.statement / "statement.html"}
    links = {}
    for name, path in pages.items():
        if path.is_file():
            relative = path.relative_to(folder.path).as_posix()
            links[name] = quote(f"{seen_from}/{relative}")
    return links


def _pictures(run: Watched, title: str) -> dict[str, str]:
    """Return the report's pictures as data URLs, by name.

    Until there is a report, these are the plots of the rounds so far.
    """
    with TemporaryDirectory() as scratch:
        folder = run.folder
        if not run.summary:  # There is no report yet.
            folder = RunFolder(scratch)
            if run.rounds:
                plot_progress(run.rounds, folder, title)
        pictures = {}
        for path in folder.pictures.values():
            if path.is_file():
                name = path.stem.replace("-", " ")
                content = base64.b64encode(path.read_bytes()).decode()
                pictures[name] = f"data:image/png;base64,{content}"
        return pictures


def _moment(seconds: float) -> str:
    """Return a time in seconds since 1970 as a date and a time of day in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def duration_words(seconds: float) -> str:
    """Return a duration in words: in days, hours or minutes if it has at least two, or seconds."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    if 0 < seconds < 1:
        return "under 1 s"
    return f"{seconds:,.0f} s"
