"""The page of a run that is watched: one file that runs nothing and fetches nothing.

While the run goes on it is written again every few seconds, and a browser reads it again as often.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup

from fedif_consortium.page import templates
from fedif_consortium.watch.reader import read_records
from fedif_consortium.watch.remarks import remarks
from fedif_consortium.watch.state import NEED_ATTENTION, STATE_WORDS, Watched
from fedif_flower.run.config import default_run_config, subject_of
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.plots import HONEST, MALICIOUS, new_figure
from fedif_flower.run.report import run_title
from fedif_flower.settings import AUTO
from fedif_flower.storage import write_atomically

SECONDS = 5.0  # Between two writings, and two readings.
FIRST_MEMBERS = 40  # The others are there once their part is opened.
MOST_MEMBERS = 2_000
LATEST_ROUNDS = 10
MOST_CURVES = 4
_LARGEST = 1e30  # A model that diverged has no curve.


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
        run = Watched(read_records(folder), time.time())
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
    config = run.records.config
    title = run_title(config, subject_of(config)) if _says_what_it_is(run) else run.records.name
    members = run.members[:MOST_MEMBERS]
    environment = _environment()
    style = environment.get_template("watch.css.md").render()
    return environment.get_template("watch.html.md").render(
        policy=_policy(style),
        style=Markup(style),
        refresh=round(SECONDS),
        title=title,
        run=run,
        live=run.live if run.is_running else None,
        remarks=remarks(run),
        curves=_curves(run),
        first=members[:FIRST_MEMBERS],
        others=members[FIRST_MEMBERS:],
        left_out=len(run.members) - len(members),
        attention=run.count(*NEED_ATTENTION),
        states={s: w for s, w in STATE_WORDS.items() if run.count(s)},
        decimals=_decimals(run),
        attributed=any(m.totals.contribution is not None for m in members),
        scored=any(m.totals.weight_score is not None for m in members),
        latest=run.points[: -LATEST_ROUNDS - 1 : -1],
        links={t: quote(folder + path) for t, path in run.records.links.items()},
        settings=_chosen(config),
    )


def _policy(style: str) -> str:
    """Return what a browser may do with the page: show it, and the pictures in it."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = f"style-src 'sha256-{digest}'; img-src data:"
    return f"default-src 'none'; {allowed}; form-action 'none'; base-uri 'none'"


def _says_what_it_is(run: Watched) -> bool:
    return {"strategy", "attack", "dataset"} <= run.records.config.keys()


def _curves(run: Watched) -> list[tuple[str, str, dict[str, str]]]:
    """Return each figure's name, picture, and the last value of each of its lines."""
    drawn = []
    for measure, columns in list(run.measures.items())[:MOST_CURVES]:
        percent = measure == "accuracy"
        lines = {column.partition("_")[0]: run.series(column) for column in columns}
        shown = {
            name: f"{100 * s[-1][1]:.1f} %" if percent else f"{s[-1][1]:.4g}"
            for name, s in lines.items()
        }
        drawn.append((measure.capitalize(), _picture(measure, lines, run.num_rounds), shown))
    return drawn


def _picture(
    measure: str, lines: Mapping[str, Sequence[tuple[int, float]]], num_rounds: int
) -> str:
    """Draw a figure over the rounds, a line for each split; return it as a data URL."""
    figure = new_figure(height=2.8)
    axes = figure.subplots()
    for (split, series), colour in zip(lines.items(), (HONEST, MALICIOUS), strict=False):
        points = [(t, v) for t, v in series if abs(v) < _LARGEST]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, label=split)
    axes.set(xlabel="round", ylabel=measure, xlim=(0, max(num_rounds, 1)))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _chosen(config: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that are not as they come."""
    usual = default_run_config()
    return {key: value for key, value in config.items() if usual.get(key) not in (value, AUTO)}


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = templates().overlay(trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(moment=moment, lasting=lasting, nats=nats)
    return environment


def moment(seconds: float) -> str:
    """Return a time since 1970 as a date and a time of day."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return "at no time"


def nats(value: float, decimals: int) -> str:
    """Return a contribution with its sign, a true minus."""
    return f"{value:+.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def _decimals(run: Watched) -> int:
    """Return with how many decimals the largest contribution has four digits."""
    values = (abs(member.totals.contribution or 0.0) for member in run.members)
    largest = max((value for value in values if math.isfinite(value)), default=0.0)
    return min(max(3 - math.floor(math.log10(largest)), 0), 6) if largest else 4


def lasting(seconds: float) -> str:
    """Return how long something lasts, in its largest unit."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"
