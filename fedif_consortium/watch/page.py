"""The page of a run that is watched: one file, which fetches nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import math
import os
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import DictLoader, Environment, StrictUndefined, Template
from markupsafe import Markup

from fedif_consortium.watch.curves import curve
from fedif_consortium.watch.remarks import remarks
from fedif_consortium.watch.state import NEED_ATTENTION, STATE_WORDS, Watched
from fedif_consortium.watch.template import SCRIPT, STYLE, TEMPLATE
from fedif_flower.run.config import default_run_config, subject_of
from fedif_flower.run.report import run_title
from fedif_flower.settings import AUTO

FIRST_MEMBERS = 40  # The others are there once their part is opened.
MOST_MEMBERS = 2_000
LATEST_ROUNDS = 10
MOST_CURVES = 4


def render(run: Watched, *, folder: str = "", served: bool = False) -> str:
    """Return the page.

    Parameters
    ----------
    run : Watched
        The run at a moment.
    folder : str
        Where the run's folder is, seen from the page: links begin with it.
    served : bool
        Whether the page comes from a server, and asks it for what is new every few seconds.
    """
    config = run.records.config
    title = run_title(config, subject_of(config)) if _says_what_it_is(run) else run.records.name
    members = run.members[:MOST_MEMBERS]
    return _template().render(
        policy=policy(served=served),
        style=Markup(STYLE),
        script=Markup(SCRIPT) if served else "",
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
        settings=_settings(run),
    )


def render_file(run: Watched, folder: Path, file: Path) -> str:
    """Return the page as it is written to a file, with links to a run's folder."""
    start = os.path.relpath(folder.resolve(), file.resolve().parent)
    return render(run, folder="" if start == "." else f"{Path(start).as_posix()}/")


def policy(*, served: bool) -> str:
    """Return what a browser may do with the page: run its own script, and fetch the page again."""
    allowed = ["default-src 'none'", f"style-src '{_digest(STYLE)}'"]
    if served:
        allowed += [f"script-src '{_digest(SCRIPT)}'", "connect-src 'self'"]
    return "; ".join([*allowed, "form-action 'none'", "base-uri 'none'"])


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _says_what_it_is(run: Watched) -> bool:
    return {"strategy", "attack", "dataset"} <= run.records.config.keys()


def _curves(run: Watched) -> list[tuple[str, Markup, dict[str, str]]]:
    """Return each figure's name, picture, and the last value of each of its lines."""
    drawn = []
    for measure, columns in list(run.measures.items())[:MOST_CURVES]:
        percent = measure == "accuracy"
        lines = {column.partition("_")[0]: run.series(column) for column in columns}
        shown = {
            name: f"{100 * s[-1][1]:.1f} %" if percent else f"{s[-1][1]:.4g}"
            for name, s in lines.items()
        }
        picture = curve(measure, lines, run.num_rounds, percent=percent)
        drawn.append((measure.capitalize(), picture, shown))
    return drawn


def _settings(run: Watched) -> tuple[dict[str, object], dict[str, object]]:
    """Return the settings that were chosen, and those that are as they come."""
    usual = default_run_config()
    chosen: dict[str, object] = {}
    others: dict[str, object] = {}
    for key, value in run.records.config.items():
        as_it_comes = usual.get(key) in (value, AUTO)
        (others if as_it_comes else chosen)[key] = value
    return chosen, others


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=DictLoader({"page": TEMPLATE}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(moment=moment, lasting=lasting, nats=nats)
    return environment.get_template("page")


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
