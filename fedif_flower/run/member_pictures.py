"""Pictures of a run's members: a bar for each, or a line over the rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedif_flower.run.member import Member
from fedif_flower.run.palette import HONEST, MALICIOUS
from fedif_flower.run.plots import dress, new_figure, save_figure
from fedif_flower.run.rows import Line

_MOST_BARS = 40  # Members that a picture has room for.
_LABELS = {"contribution": "decrease of the validation loss", "weight_score": "weight score"}


def bar_column(members: Sequence[Member]) -> str | None:
    """Return what bars are drawn of: contributions, else weight scores; ``None``: neither."""
    for column in _LABELS:
        if any(getattr(member, column) is not None for member in members):
            return column
    return None


def plot_bars(members: Sequence[Member], path: Path, *, title: str, interval: str) -> None:
    """Draw what members contributed, with their intervals; else their weight scores.

    Parameters
    ----------
    members : sequence of Member
        One at least has either.
    path : Path
        The picture.
    title : str
        Of the picture.
    interval : str
        What the intervals are about.
    """
    column = bar_column(members)
    assert column is not None  # callers have made sure
    xlabel = _LABELS[column]
    shown = [member for member in members if getattr(member, column) is not None]
    if len(shown) > _MOST_BARS:
        title += f"\nthe first {_MOST_BARS} of {len(shown)} members"
        shown = shown[:_MOST_BARS]
    shown.reverse()  # Bars are drawn from below, and the first member is to be at the top.
    figure = new_figure(height=1.2 + 0.25 * len(shown))
    axes = figure.subplots()
    values = np.array([getattr(member, column) for member in shown])
    reach = _error_bars(shown, values)
    if reach is not None:
        xlabel += f"; line: {interval}"
    bars = axes.barh(range(len(shown)), values, xerr=reach, color=HONEST)
    for member, bar in zip(shown, bars, strict=True):
        if member.malicious:
            bar.set(facecolor=MALICIOUS, edgecolor="white", hatch="//")
    axes.set_yticks(range(len(shown)), [_name_in_picture(member) for member in shown])
    axes.set(xlabel=xlabel, title=title)
    dress(axes)
    save_figure(figure, path)


def series_of_rounds(lines: Iterable[Line]) -> dict[str, dict[int, list[tuple[int, float]]]]:
    """Return members' influences and weights over the rounds; what nobody has is left out."""
    influences: dict[int, list[tuple[int, float]]] = {}
    weights: dict[int, list[tuple[int, float]]] = {}
    for line in lines:
        client_id = line["client_id"]
        if line["score"] is not None:
            influences.setdefault(client_id, []).append((line["round"], line["score"]))
        if line["weight"] is not None:
            weights.setdefault(client_id, []).append((line["round"], line["weight"]))
    series = {}
    if influences:
        series["influence"] = influences
    if weights:
        series["weight"] = weights
    return series


def _name_in_picture(member: Member) -> str:
    if member.malicious:
        return f"{member.label} (malicious)"
    return member.label


def _error_bars(members: Sequence[Member], values: NDArray[np.float64]) -> Any:
    """Return how far intervals reach to both sides, ``[2, n]``, where every member has one."""
    if any(member.low is None for member in members):
        return None
    lows = np.array([member.low for member in members])
    highs = np.array([member.high for member in members])
    # A width of 0 may be less by rounding, which a picture refuses.
    return np.maximum([values - lows, highs - values], 0.0)
