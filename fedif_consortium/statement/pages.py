"""The pages: one for the consortium, one for each member, each a single file without scripts.

Everything that a member or an operator wrote is escaped; a browser that opens a page fetches
nothing.
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
from fedif_consortium.statement.luck import BOTH, DRAW, EXAMPLES, ROUNDS
from fedif_consortium.statement.manifest import PAGE, Manifest
from fedif_consortium.statement.member_account import RULES
from fedif_consortium.statement.records import RunRecords
from fedif_consortium.statement.settings import RELATIVE, weighs_by_length
from fedif_flower.attribution.intervals import MIN_ROUNDS
from fedif_flower.run.completeness import LETTERS, NOT_ASKED
from fedif_flower.server.summary import Scoring

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
CREDIT_BOUNDS: Mapping[str, str] = {
    "length": "updates are credited however long they are",
    "borrowed": "members are credited for repeating the last global steps",
    "weight": "members are credited for any weight that they get or claim",
}
_COUNTED = ("asked", "answered", "late", "missing", "refused", "paused", "offline")


class Scale:
    """Maps values to places between ``start`` and ``end``; 0 is always on it."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Return a value's place."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return round(self._start + share * (self._end - self._start), 2)

    def apart(self, values: Sequence[float], gap: float) -> list[float]:
        """Return the values whose labels do not run into those before them."""
        kept: list[float] = []
        for value in values:
            if all(abs(self(value) - self(other)) >= gap for other in kept):
                kept.append(value)
        return kept


def render(account: Account, records: RunRecords, manifest: Manifest) -> dict[str, str]:
    """Return every page by its path below the statement's folder; ``records`` of what counts."""
    members = account.members
    values = [member.contribution for member in members]
    run = records.folder
    bounds = {name: float(records.config.get(f"credit.{name}", 0.0)) for name in CREDIT_BOUNDS}
    told = {name: f"{v:g} times" if v else "any multiple of" for name, v in bounds.items()}
    shared = {
        "account": account,
        "config": records.config,
        "manifest": manifest,
        "masking": run.masking.read() if run.masking.path.is_file() else None,
        "scoring": Scoring.from_record(run.summary.read().get("scoring")),
        "has_scores": any(member.weight_score is not None for member in members),
        "bounds": told if any(bounds.values()) else {},
        "open_games": open_games(records.config),
        "key": fingerprint(manifest.signer),
        "version": records.provenance.get("versions", {}).get("fedif-flower", ""),
        "decimals": decimals_for(values),
    }
    ends = [end for member in members for end in member.interval or ()]
    scale, losses = Scale([*values, *ends], 5, 145), records.losses
    page = _templates().get_template("consortium.html.md")
    loss_scale = Scale(losses, 128, 12)
    pages = {PAGE: page.render(**shared, scale=scale, losses=losses, loss_scale=loss_scale)}
    page, scale = _templates().get_template("member.html.md"), Scale(values, 40, 680)
    ticks = "".join(f"M{scale(value)} 22V46" for value in values)
    for member in members:
        of_round = {part.round: part.contribution for part in records.parts_of[member.client_id]}
        own = [of_round.get(row.round) for row in records.rounds]
        own_scale = Scale([value for value in own if value is not None], 118, 12)
        pages[member.page] = page.render(
            **shared, member=member, scale=scale, ticks=ticks, own=own, own_scale=own_scale
        )
    return pages


def open_games(config: Mapping[str, Any]) -> list[str]:
    """Return what can be farmed in a run, a sentence each without its full stop.

    Parameters
    ----------
    config : mapping
        The run's settings by their keys, as in ``config.json``.
    """
    found = [
        f"credit.{name} = 0: {words}"
        for name, words in CREDIT_BOUNDS.items()
        if not float(config.get(f"credit.{name}", 0.0))
    ]
    if not config.get("credit.secret-validation", False):
        found.append(
            "credit.secret-validation = false: contributions are measured on the data that weigh, "
            "and a member who knows these and trains on them is paid for it"
        )
    if weighs_by_length(config):
        found.append(
            f"{RELATIVE} = false: who sends longer updates, or repeats the last step, gains weight"
        )
    return found


@lru_cache(maxsize=1)
def made_with() -> str:
    """Return the SHA-256 of what makes a statement: another version may word things differently."""
    digest = hashlib.sha256()
    for path in sorted([*Path(__file__).parent.glob("*.py"), *TEMPLATES.iterdir()]):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def decimals_for(values: Sequence[float]) -> int:
    """Return with how many decimals the largest of them has four digits."""
    largest = max(map(abs, values), default=0.0)
    return min(max(3 - math.floor(math.log10(largest)), 2), 9) if largest else 2


@lru_cache(maxsize=1)
def _templates() -> Environment:
    found = templates().overlay()
    found.filters = found.filters | {
        "nats": _nats,
        "loss": lambda value: f"{value:.3f}" if value >= 0.1 else f"{value:.3g}",
        "percent": lambda share: f"{100 * share:.1f} %",
        "money": lambda cents: f"{_grouped(cents // 100)}.{cents % 100:02}",
        "some": lambda value: value or DASH,
        "score": lambda value: DASH if value is None else f"{value:.3f}",
        "count": lambda value: DASH if value is None else _grouped(round(value)),
        "short": lambda value: f"{value:.2g}".replace("-", MINUS),
        "date": lambda text: text.replace("T", " ").replace("Z", " UTC"),
    }
    found.globals = found.globals | {
        "verdict_rules": RULES,
        "counted": _COUNTED,
        "letters": LETTERS,
        "not_asked": NOT_ASKED,
        "min_rounds": MIN_ROUNDS,
        "short_for": {EXAMPLES: "examples", DRAW: "draw", ROUNDS: "rounds", BOTH: "both"},
    }
    return found


@pass_context
def _nats(context: Context, value: float) -> str:
    """Return a contribution with its sign, a true minus, and as many decimals as the others."""
    text = f"{abs(value):.{context['decimals']}f}"
    return "0" if value == 0 else f"{MINUS if value < 0 else '+'}{text}"


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
