"""Curves as SVG: made of numbers and escaped words, coloured by the page's style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

Series = Sequence[tuple[int, float]]
MOST_POINTS = 300  # That a curve is drawn with.
WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 12, 26
_LARGEST = 1e30  # A model that diverged has no curve.


def thinned(series: Series, most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """Return at most so many points of a curve: of each stretch the lowest and the highest.

    Peaks stay where they are, and so do the first point and the last one.
    """
    if len(series) <= most:
        return list(series)
    inner = series[1:-1]
    size = math.ceil(len(inner) / ((most - 2) // 2))
    kept = []
    for start in range(0, len(inner), size):
        stretch = inner[start : start + size]
        ends = {f(stretch, key=lambda point: point[1]) for f in (min, max)}
        kept.extend(sorted(ends))
    return [series[0], *kept, series[-1]]


def curve(title: str, lines: Mapping[str, Series], num_rounds: int, *, percent: bool) -> Markup:
    """Draw a figure over the rounds, a line for each split.

    Parameters
    ----------
    title : str
        What is drawn.
    lines : mapping of str to series
        Values by round, by what they are called, at most four; what is not finite is left out.
    num_rounds : int
        How far the axis reaches.
    percent : bool
        Whether values are shares.
    """
    lines = {n: [(t, v) for t, v in s if abs(v) < _LARGEST] for n, s in lines.items()}
    values = [value for series in lines.values() for _, value in series]
    low, high = min(values, default=0.0), max(values, default=1.0)
    marks = _marks(low, high)
    low, high = min(low, marks[0]), max(high, marks[-1])
    last = max(num_rounds, *(t for series in lines.values() for t, _ in series), 1)

    def x(server_round: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * server_round / last:.1f}"

    def y(value: float) -> str:
        return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low):.1f}"

    grid = "".join(
        f'<line class="grid" x1="{LEFT}" y1="{y(mark)}" x2="{WIDTH - RIGHT}" y2="{y(mark)}"/>'
        f'<text x="{LEFT - 7}" y="{float(y(mark)) + 4:.1f}" text-anchor="end">'
        f"{_shown(mark, marks, percent=percent)}</text>"
        for mark in marks
    )
    ticks = "".join(
        f'<text x="{x(tick)}" y="{HEIGHT - 6}" text-anchor="{anchor}">{tick:,}</text>'
        for tick, anchor in ((0, "start"), (last // 2, "middle"), (last, "end"))
    )
    drawn, told = "", []
    for i, (name, series) in enumerate(lines.items()):
        points = " ".join(f"{x(t)},{y(v)}" for t, v in thinned(series))
        if series:
            end = f"{100 * series[-1][1]:.1f} %" if percent else f"{series[-1][1]:.4g}"
            told.append(f"{name}: {end} after round {series[-1][0]}")
            drawn += f'<polyline class="line line-{i}" points="{points}"/>'
            drawn += f'<circle class="dot dot-{i}" cx="{x(series[-1][0])}" '
            drawn += f'cy="{y(series[-1][1])}" r="3"/>'
    named = escape(title)
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{named} over the rounds</title>'
        f"<desc>{escape('; '.join(told))}</desc>{grid}{ticks}{drawn}</svg>"
    )


def _marks(low: float, high: float) -> list[float]:
    """Return three to six round numbers from below ``low`` to above ``high``."""
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 2))
    step = next(step * k for k in (1, 2, 5, 10, 20) if span / (step * k) <= 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [k * step for k in range(first, max(last, first + 1) + 1)]


def _shown(mark: float, marks: Sequence[float], *, percent: bool) -> str:
    scale = 100 if percent else 1
    step = (marks[1] - marks[0]) * scale
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    text = f"{mark * scale:,.{decimals}f}" if decimals < 5 else f"{mark * scale:.2g}"
    return f"{text} %" if percent else text
