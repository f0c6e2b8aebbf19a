"""Pictures of a run's members: a bar for each, and what each had in each round."""

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

_MOST_BARS = 40  # A picture has room for so many members.
_LABELS = {"contribution": "decrease of the validation loss", "weight_score": "weight score"}


def bar_column(members: Sequence[Member]) -> str | None:
    """Return the column of members that bars show: contributions, else weight scores.

    ``None``: no member has either.
    """
    for column in _LABELS:
        if any(getattr(member, column) is not None for member in members):
            return column
    return None


def plot_bars(members: Sequence[Member], path: Path, *, title: str, interval: str) -> None:
    """Draw a bar for each member: its contribution, with the interval, or else its weight score.

    Parameters
    ----------
    members : sequence of Member
        At least one has a contribution or a weight score.
    path : Path
        The PNG file.
    title : str
        The title of the picture.
    interval : str
        What the intervals are about, in words.
    """
    column = bar_column(members)
    assert column is not None  # Callers have made sure.
    xlabel = _LABELS[column]
    shown = [member for member in members if getattr(member, column) is not None]
    if len(shown) > _MOST_BARS:
        title += f"\nthe first {_MOST_BARS} of {len(shown)} members"
        shown = shown[:_MOST_BARS]
    shown.reverse()  # Bars are drawn from below, so that the first member is now at the top.
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
    """Return the members' influences and weights over the rounds.

    The result has ``"influence"`` and ``"weight"``, each if a member has one; both hold pairs of
    round and value by client id.
    """
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
    """Return how far intervals reach below and above ``values`` ``[n]``, as ``[2, n]``.

    ``None``: some member has no interval.
    """
    if any(member.low is None for member in members):
        return None
    lows = np.array([member.low for member in members])
    highs = np.array([member.high for member in members])
    # Rounding may make a width of 0 negative, and matplotlib refuses negative widths.
    return np.maximum([values - lows, highs - values], 0.0)
