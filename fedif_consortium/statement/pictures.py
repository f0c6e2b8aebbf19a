"""The pages' pictures: SVG made of numbers alone, so that nothing in it has to be escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from markupsafe import Markup

MINUS = "\N{MINUS SIGN}"
BLUE, RED, GREY, LINE = "#1f5fa8", "#b3341f", "#8b949e", "#d8dde3"


class Scale:
    """Maps values to positions between ``start`` and ``end``; 0 is always on it."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Return a value's position."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return round(self._start + share * (self._end - self._start), 2)


def interval(value: float, between: tuple[float, float] | None, scale: Scale) -> Markup:
    """Draw a contribution as a point on its interval, beside the line of 0; 150 by 14."""
    colour = RED if value < 0 else BLUE
    bar = ""
    if between is not None:
        low, high = (scale(end) for end in between)
        bar = (
            f'<line x1="{low}" y1="7" x2="{high}" y2="7" stroke="{colour}" stroke-width="2.5" '
            'stroke-linecap="round" opacity="0.45"/>'
        )
    zero = scale(0.0)
    return Markup(
        '<svg viewBox="0 0 150 14" width="150" height="14" aria-hidden="true">'
        f'<line x1="{zero}" y1="0" x2="{zero}" y2="14" stroke="{GREY}" stroke-width="1"/>{bar}'
        f'<circle cx="{scale(value)}" cy="7" r="3.6" fill="{colour}"/></svg>'
    )


def distribution(values: tuple[float, ...], own: float, decimals: int) -> Markup:
    """Draw all members' contributions as ticks without names, and one's own as a point."""
    scale, ticks = _ticks(values)
    colour = RED if own < 0 else BLUE
    ends = "".join(
        f'<text x="{scale(v)}" y="72" text-anchor="middle">{nats(v, decimals)}</text>'
        for v in _apart([0.0, scale.high, scale.low], scale, 110)
    )
    side = "start" if scale(own) < 80 else "end" if scale(own) > 640 else "middle"
    return Markup(
        '<svg viewBox="0 0 720 80" width="720" height="80" role="img" '
        'aria-label="contributions of all members">'
        f'<line x1="40" y1="52" x2="680" y2="52" stroke="{LINE}" stroke-width="1.5"/>'
        f'<line x1="{scale(0.0)}" y1="18" x2="{scale(0.0)}" y2="58" stroke="{GREY}"/>{ticks}'
        f'<circle cx="{scale(own)}" cy="34" r="7" fill="{colour}"/>'
        f'<text x="{scale(own)}" y="13" text-anchor="{side}" style="fill:{colour};font-weight:600">'
        f"you: {nats(own, decimals)}</text>{ends}</svg>"
    )


@lru_cache(maxsize=1)
def _ticks(values: tuple[float, ...]) -> tuple[Scale, str]:
    """Return a scale and a tick for each value: the same for every member's page."""
    scale = Scale(values, 40, 680)
    lines = "".join(f"M{scale(value)} 22V46" for value in values)
    ticks = f'<path d="{lines}" stroke="{GREY}" stroke-width="1.6" opacity="0.7"/>'
    return scale, ticks


def by_round(values: Sequence[float | None], decimals: int, first: int = 1) -> Markup:
    """Draw what a member contributed in each round as bars; a dot where it had no part."""
    known = [value for value in values if value is not None]
    scale = Scale(known, 118, 12)
    width = 640 / max(len(values), 1)
    bar = max(min(width * 0.72, 26), 0.6)
    drawn, absent = [], []
    for i, value in enumerate(values):
        middle = round(70 + (i + 0.5) * width, 2)
        if value is None:
            absent.append(f"M{middle} {scale(0.0)}h0")
            continue
        top, bottom = sorted((scale(value), scale(0.0)))
        drawn.append(
            f'<rect x="{middle - bar / 2:.2f}" y="{top}" width="{bar:.2f}" '
            f'height="{max(bottom - top, 0.8):.2f}" fill="{RED if value < 0 else BLUE}"/>'
        )
    marks = "".join(
        f'<text x="62" y="{scale(v) + 4}" text-anchor="end">{nats(v, decimals)}</text>'
        for v in _apart([0.0, scale.high, scale.low], scale, 24)
    )
    return Markup(
        '<svg viewBox="0 0 720 146" width="720" height="146" role="img" '
        'aria-label="contribution by round">'
        f'<line x1="70" y1="{scale(0.0)}" x2="710" y2="{scale(0.0)}" stroke="{LINE}"/>'
        f'<path d="{"".join(absent)}" stroke="{GREY}" stroke-width="2.2" stroke-linecap="round"/>'
        f"{''.join(drawn)}{marks}"
        f'<text x="{70 + width / 2:.2f}" y="140" text-anchor="middle">{first}</text>'
        f'<text x="{710 - width / 2:.2f}" y="140" text-anchor="middle">{first + len(values) - 1}'
        "</text>"
        '<text x="390" y="140" text-anchor="middle">round</text></svg>'
    )


def loss_curve(losses: Sequence[float], first: int = 0) -> Markup:
    """Draw the validation loss before the first round that counts and after each."""
    scale = Scale(losses, 128, 12)
    step = 640 / max(len(losses) - 1, 1)
    points = " ".join(f"{70 + i * step:.2f},{scale(v)}" for i, v in enumerate(losses))
    marks = "".join(
        f'<text x="62" y="{scale(v) + 4}" text-anchor="end">{v:.3g}</text>'
        f'<line x1="70" y1="{scale(v)}" x2="710" y2="{scale(v)}" stroke="{LINE}"/>'
        for v in _apart([0.0, losses[-1], losses[0]], scale, 24)
    )
    return Markup(
        '<svg viewBox="0 0 720 156" width="720" height="156" role="img" '
        f'aria-label="validation loss over rounds">{marks}'
        f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="2" '
        'stroke-linejoin="round"/>'
        f'<text x="70" y="150" text-anchor="middle">{first}</text>'
        f'<text x="710" y="150" text-anchor="middle">{first + len(losses) - 1}</text>'
        '<text x="390" y="150" text-anchor="middle">round</text></svg>'
    )


def nats(value: float, decimals: int) -> str:
    """Return a contribution with its sign, a true minus, and no sign for 0."""
    text = f"{abs(value):.{decimals}f}"
    if value == 0:
        return "0"
    return f"{MINUS if value < 0 else '+'}{text}"


def decimals_for(values: Sequence[float]) -> int:
    """Return with how many decimals the largest of them has four digits."""
    largest = max(map(abs, values), default=0.0)
    return min(max(3 - math.floor(math.log10(largest)), 2), 9) if largest else 2


def _apart(values: Sequence[float], scale: Scale, gap: float) -> list[float]:
    """Return the values whose labels do not run into those before them."""
    kept: list[float] = []
    for value in values:
        if all(abs(scale(value) - scale(other)) >= gap for other in kept):
            kept.append(value)
    return kept
