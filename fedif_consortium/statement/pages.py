"""The pages of a statement: one for the consortium, and one for each member.

Each page is a single file without scripts, and a browser that opens it fetches nothing. All text
that a member or the operator wrote is escaped.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, pass_context
from jinja2.runtime import Context

from fedif_consortium.evidence.keys import fingerprint
from fedif_consortium.page import TEMPLATES, templates
from fedif_consortium.statement.account import Account
from fedif_consortium.statement.held_out import REASONS
from fedif_consortium.statement.luck import BOTH, DRAW, EXAMPLES, ROUNDS
from fedif_consortium.statement.manifest import PAGE, Manifest
from fedif_consortium.statement.member_account import RULES
from fedif_consortium.statement.records import RunRecords
from fedif_consortium.statement.settings import RELATIVE, weighs_by_length
from fedif_consortium.statement.shares import losses_of
from fedif_flower.attribution.intervals import MIN_ROUNDS
from fedif_flower.run.completeness import LETTERS, NOT_ASKED
from fedif_flower.server.summary import Scoring
from fedif_flower.tables import decimals_for

DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
CREDIT_BOUNDS: Mapping[str, str] = {
    "length": "updates are credited however long they are",
    "borrowed": "members are credited for repeating the last global steps",
    "weight": "members are credited for any weight that they get or claim",
}
_OUTCOMES = ("asked", "answered", "late", "missing", "refused", "paused", "offline")


class ChartScale:
    """Maps values to places between ``start`` and ``end`` of a drawing; 0 always has a place."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = min([0.0, *values])
        self.high = max([0.0, *values])
        self._start = start
        self._end = end

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        share = 0.5  # If all values are 0, they lie in the middle.
        span = self.high - self.low
        if span:
            share = (value - self.low) / span
        return round(self._start + share * (self._end - self._start), 2)

    def with_room_for_labels(self, values: Sequence[float], gap: float) -> list[float]:
        """Return the values that get a label: each lies at least ``gap`` from those before it."""
        labelled: list[float] = []
        for value in values:
            gaps = [abs(self(value) - self(other)) for other in labelled]
            if min(gaps, default=gap) >= gap:
                labelled.append(value)
        return labelled


def render(account: Account, records: RunRecords, manifest: Manifest) -> dict[str, str]:
    """Return all pages as HTML, by path below the statement's folder.

    Parameters
    ----------
    account : Account
        The run's account.
    records : RunRecords
        The records from the first round that counts on.
    manifest : Manifest
        The manifest, from which pages show the operator's key and contact.
    """
    shared = _shared_values(account, records, manifest)
    pages = {PAGE: _render_consortium(account, records, shared)}
    template = _templates().get_template("member.html.md")
    contributions = [member.contribution for member in account.members]
    scale = ChartScale(contributions, 40, 680)
    ticks = "".join(f"M{scale(contribution)} 22V46" for contribution in contributions)
    for member in account.members:
        member_rounds = records.rounds_of[member.client_id]
        contribution_in = {line.round: line.contribution for line in member_rounds}
        by_round = [contribution_in.get(row.round) for row in records.rounds]
        pages[member.page] = template.render(
            **shared,
            member=member,
            scale=scale,
            ticks=ticks,
            by_round=by_round,
            round_scale=ChartScale(list(contribution_in.values()), 118, 12),
        )
    return pages


def _render_consortium(account: Account, records: RunRecords, shared: Mapping[str, Any]) -> str:
    """Return the page for the consortium."""
    values = []
    for member in account.members:
        values.append(member.contribution)
        if member.interval is not None:
            values.extend(member.interval)
    template = _templates().get_template("consortium.html.md")
    points = _points_of(records)
    return template.render(
        **shared,
        scale=ChartScale(values, 5, 145),
        points=points,
        loss_scale=ChartScale([loss for _, loss in points], 128, 12),
    )


def _points_of(records: RunRecords) -> list[tuple[int, float]]:
    """Return the finite losses with their places: 0 before the first round, 1 after it, ..."""
    points = []
    for place, loss in enumerate(losses_of(records.rounds)):
        if math.isfinite(loss):
            points.append((place, loss))
    return points


def _shared_values(account: Account, records: RunRecords, manifest: Manifest) -> dict[str, Any]:
    """Return the values that all pages show, by their names in the templates."""
    run = records.folder
    masking = None
    if run.masking.path.is_file():
        masking = run.masking.read()
    return {
        "account": account,
        "config": records.config,
        "manifest": manifest,
        "masking": masking,
        "scoring": Scoring.from_record(run.summary.read().get("scoring")),
        "has_scores": any(member.weight_score is not None for member in account.members),
        "bounds": _bounds_in_words(records.config),
        "open_games": open_games(records.config),
        "key": fingerprint(manifest.signer),
        "version": records.provenance.get("versions", {}).get("fedif-flower", ""),
        "has_fallen": account.decrease is not None and account.decrease > 0,
        "decimals": decimals_for([member.contribution for member in account.members]),
    }


def _bounds_in_words(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the bounds of credit in words, by name; empty: nothing is bounded."""
    bounds = {name: float(config.get(f"credit.{name}", 0.0)) for name in CREDIT_BOUNDS}
    if not any(bounds.values()):
        return {}
    words = dict.fromkeys(bounds, "any multiple of")
    for name, bound in bounds.items():
        if bound:
            words[name] = f"{bound:g} times"
    return words


def open_games(config: Mapping[str, Any]) -> list[str]:
    """Return the games that a run's settings leave open, one sentence each without its full stop.

    A game is what a member does to be credited for nothing.

    Parameters
    ----------
    config : mapping
        The run's settings by their keys, as in ``config.json``.
    """
    games = []
    for name, words in CREDIT_BOUNDS.items():
        if float(config.get(f"credit.{name}", 0.0)) == 0:
            games.append(f"credit.{name} = 0: {words}")
    if not config.get("credit.secret-validation", False):
        games.append(
            "credit.secret-validation = false: contributions are measured on the data that weigh, "
            "and a member who knows these and trains on them is paid for it"
        )
    if weighs_by_length(config):
        games.append(
            f"{RELATIVE} = false: who sends longer updates, or repeats the last step, gains weight"
        )
    return games


@lru_cache(maxsize=1)
def made_with() -> str:
    """Return the SHA-256 of the code and templates that make a statement's files.

    Pages are compared word by word only if this hash is that of the version that made them.
    """
    digest = hashlib.sha256()
    room = Path(__file__).parent
    of_all_pages = TEMPLATES.parent / "page.py"
    for path in sorted([*room.glob("*.py"), *TEMPLATES.iterdir(), of_all_pages]):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _templates() -> Environment:
    environment = templates().overlay()
    environment.filters = environment.filters | {
        "nats": _nats,
        "loss": _loss,
        "percent": _percent,
        "money": _money,
        "or_dash": _or_dash,
        "score": _score,
        "count": _count,
        "two_digits": _two_digits,
        "date": _date,
    }
    environment.globals = environment.globals | {
        "verdict_rules": RULES,
        "held_out_reasons": REASONS,
        "outcomes": _OUTCOMES,
        "letters": LETTERS,
        "not_asked": NOT_ASKED,
        "min_rounds": MIN_ROUNDS,
        "short_name_of": {EXAMPLES: "examples", DRAW: "draw", ROUNDS: "rounds", BOTH: "both"},
    }
    return environment


def _loss(value: float | None) -> str:
    """Return a loss with three decimals, a small one with three digits; words for ``None``."""
    if value is None:
        return "not finite"
    if value >= 0.1:
        return f"{value:.3f}"
    return f"{value:.3g}"


@pass_context
def _nats(context: Context, value: float) -> str:
    """Return a contribution with its sign, as U+2212 or +, and the page's number of decimals."""
    if value == 0:
        return "0"
    sign = MINUS if value < 0 else "+"
    return f"{sign}{abs(value):.{context['decimals']}f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _money(cents: int) -> str:
    """Return an amount of cents with groups of three digits, such as 1 000.50."""
    return f"{_grouped(cents // 100)}.{cents % 100:02}"


def _or_dash(value: object) -> object:
    """Return the value, or a dash for 0 and for an empty text."""
    return value or DASH


def _score(value: float | None) -> str:
    """Return a score with three decimals; a dash for ``None``."""
    if value is None:
        return DASH
    return f"{value:.3f}"


def _count(value: float | None) -> str:
    """Return a rounded number of examples with groups of three digits; a dash for ``None``."""
    if value is None:
        return DASH
    return _grouped(round(value))


def _two_digits(value: float) -> str:
    """Return a number with two significant digits, and U+2212 as its minus."""
    return f"{value:.2g}".replace("-", MINUS)


def _date(text: str) -> str:
    """Return a time such as 2026-01-31T12:00:00Z as 2026-01-31 12:00:00 UTC."""
    return text.replace("T", " ").replace("Z", " UTC")


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
