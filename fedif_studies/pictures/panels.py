"""Panels of a picture: where they stand, their scales, and what is written around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedif_studies.pictures.svg import Drawing, Kind, Look, width_of

P = TypeVar("P")  # What a panel shows.

_ROOM = 0.06  # At both ends of a scale, as a share of the distance between its values.
_ALLOWANCE = 1e-9  # Of a tick's place, in steps: sums of steps are rounded.


@dataclass(frozen=True)
class Sheet:
    """A width that pictures are drawn for.

    Attributes
    ----------
    width : int
        In pixels.
    size : int
        Of the font. A wide picture is shown at two thirds of its size on most pages.
    """

    width: int
    size: int

    @property
    def is_narrow(self) -> bool:
        """Whether it is for a telephone."""
        return self.width < 600


SHEETS = (Sheet(380, 13), Sheet(1240, 17))


@dataclass(frozen=True)
class Scale:
    """Values to places.

    Attributes
    ----------
    low, high : float
        The values at both ends, ``low < high``.
    start, end : float
        Their places in pixels.
    is_log : bool
        Whether equal factors, not equal differences, are equally far.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return a value's place."""
        low = self._on_axis(self.low)
        high = self._on_axis(self.high)
        length = self.end - self.start
        return self.start + length * (self._on_axis(value) - low) / (high - low)

    def _on_axis(self, value: float) -> float:
        """Return what differences of values are taken of."""
        if self.is_log:
            return math.log10(value)
        return value

    def ticks(self, most: int) -> list[float]:
        """Return round values between both ends, so many at most; powers of ten on a log scale."""
        if self.is_log:
            first = math.ceil(math.log10(self.low) - _ALLOWANCE)
            last = math.floor(math.log10(self.high) + _ALLOWANCE)
            apart = max(1, math.ceil((last - first + 1) / most))
            return [10.0**power for power in range(first, last + 1, apart)]
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - _ALLOWANCE)
        last = math.floor(self.high / step + _ALLOWANCE)
        return [number * step for number in range(first, last + 1)]


def _round_step(least: float) -> float:
    """Return the least of 1, 2, 5, 10 ... times a power of ten that is as large."""
    power = 10.0 ** math.floor(math.log10(least))
    for factor in (1, 2, 5):
        if factor * power >= least * (1 - _ALLOWANCE):
            return factor * power
    return 10 * power


def limits(values: Iterable[float]) -> tuple[float, float]:
    """Return ends for values, with some room around them."""
    all_values = list(values)
    low = min(all_values)
    high = max(all_values)
    around = _ROOM * (high - low)
    if not around:
        around = 1.0
    return low - around, high + around


@dataclass(frozen=True)
class Box:
    """Where a panel stands: the area of its values, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right side."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Its lower side."""
        return self.top + self.height


@dataclass(frozen=True)
class Grid:
    """Panels in rows, each with room for words above it, below it and on its left.

    Attributes
    ----------
    boxes : tuple of Box
        One for each panel, row by row.
    bottom : float
        Where the last row ends, with the room below it.
    across : int
        Panels in a row.
    """

    boxes: tuple[Box, ...]
    bottom: float
    across: int

    def is_first(self, index: int) -> bool:
        """Tell whether a panel is the first of its row."""
        return index % self.across == 0


def panel_grid(
    sheet: Sheet,
    count: int,
    across: int,
    *,
    start: float,
    height: float,
    above: float,
    below: float,
    left: float = 0.0,
    each_left: float = 0.0,
) -> Grid:
    """Return where panels stand.

    Parameters
    ----------
    sheet : Sheet
        What they are drawn on.
    count, across : int
        How many, and how many in a row.
    start : float
        Where the first row begins, with the room above it.
    height : float
        Of a panel's area.
    above, below : float
        Room above and below each.
    left : float
        Room at the left of a row.
    each_left : float
        Room at the left of every panel.
    """
    gap = 0.6 * sheet.size
    width = (sheet.width - left - gap) / across
    boxes = []
    for index in range(count):
        row, column = divmod(index, across)
        x = left + column * width + each_left
        y = start + row * (above + height + below) + above
        boxes.append(Box(x, y, width - gap - each_left, height))
    rows = math.ceil(count / across)
    return Grid(tuple(boxes), start + rows * (above + height + below), across)


def draw_panels(
    drawing: Drawing,
    sheet: Sheet,
    panels: Sequence[P],
    draw_panel: Callable[[Drawing, Box, P], None],
    across: int,
    **room: float,
) -> float:
    """Draw panels in a grid, and return where they end.

    Parameters
    ----------
    drawing : Drawing
        Where.
    sheet : Sheet
        What they are drawn on.
    panels : sequence
        What each shows.
    draw_panel : callable
        Draws one: ``draw_panel(drawing, box, panel)``.
    across : int
        How many in a row.
    **room : float
        ``start``, ``height``, ``above``, ``below``, ``left``, ``each_left`` of :func:`panel_grid`.
    """
    grid = panel_grid(sheet, len(panels), across, **room)
    for panel, box in zip(panels, grid.boxes, strict=True):
        draw_panel(drawing, box, panel)
    return grid.bottom


Entry = tuple[Look, Kind, str]
"""A line of a legend: what it looks like, and what it is called."""


def legend(drawing: Drawing, sheet: Sheet, top: float, entries: Sequence[Entry]) -> float:
    """Write a legend, in as many lines as it needs, and return where it ends."""
    if not entries:
        return top
    size = sheet.size
    left = float(size)
    x = left
    y = top + 1.1 * size
    for look, kind, words in entries:
        width = 1.9 * size + width_of(words, size)
        if x > left and x + width > sheet.width:
            x = left
            y += 1.6 * size
        drawing.point((x, y - 0.33 * size), look, kind)
        drawing.text((x + 0.8 * size, y), words)
        x += width
    return y + 0.5 * size


def heading(drawing: Drawing, sheet: Sheet, words: str) -> float:
    """Write what the picture shows, in as many lines as it needs; return where it ends."""
    y = 0.4 * sheet.size
    for line in wrapped(words, sheet.width - 1.2 * sheet.size, sheet.size, is_bold=True):
        y += 1.35 * sheet.size
        drawing.text((0.6 * sheet.size, y), line, classes="bold")
    return y + 0.3 * sheet.size


def remark(drawing: Drawing, sheet: Sheet, top: float, words: str) -> float:
    """Write how to read the picture, in as many lines as it needs; return where it ends."""
    y = top
    for line in wrapped(words, sheet.width - 1.2 * sheet.size, sheet.size):
        y += 1.3 * sheet.size
        drawing.text((0.6 * sheet.size, y), line, classes="quiet")
    return y + 0.4 * sheet.size


def wrapped(words: str, width: float, size: float, *, is_bold: bool = False) -> list[str]:
    """Return words in lines that are about so wide at most."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer, size, is_bold=is_bold) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def horizontal_lines(
    drawing: Drawing, box: Box, scale: Scale, *, most: int, labelled: bool = True
) -> None:
    """Draw a line at each round value, with the value at its left where that is wanted."""
    size = drawing.size
    for value in scale.ticks(most):
        y = scale(value)
        drawing.line((box.left, y), (box.right, y))
        if labelled:
            place = (box.left - 0.35 * size, y + 0.34 * size)
            drawing.text(place, f"{value:g}", anchor="end", classes="quiet")


def vertical_lines(drawing: Drawing, box: Box, scale: Scale, *, most: int) -> None:
    """Draw a line at each round value, with the value below it."""
    size = drawing.size
    for value in scale.ticks(most):
        x = scale(value)
        drawing.line((x, box.top), (x, box.bottom))
        place = (x, box.bottom + 1.2 * size)
        drawing.text(place, f"{value:g}", anchor="middle", classes="quiet")


def compose(
    sheet: Sheet,
    title: str,
    finding: str,
    entries: Sequence[Entry],
    marks: str,
    body: Callable[[Drawing, float], float],
) -> str:
    """Return a picture's text: a title, a legend, how to read it, and what is drawn below.

    Parameters
    ----------
    sheet : Sheet
        Its width.
    title, finding : str
        What it shows, and what is seen in it.
    entries : sequence of Entry
        The legend.
    marks : str
        How to read it.
    body : callable
        Draws the rest from a place on, and returns where it ends.
    """

    def draw_with(height: float) -> tuple[Drawing, float]:
        """Return a drawing that is said to be so high, and where what is drawn in it ends."""
        drawing = Drawing(sheet.width, height, title, finding, sheet.size)
        top = heading(drawing, sheet, title)
        top = legend(drawing, sheet, top, entries)
        top = remark(drawing, sheet, top, marks)
        return drawing, body(drawing, top)

    # A file begins with its height, which shows only once all is drawn: it is drawn twice.
    _, end = draw_with(0.0)
    drawing, _ = draw_with(round(end + 0.6 * sheet.size))
    return drawing.to_text()
