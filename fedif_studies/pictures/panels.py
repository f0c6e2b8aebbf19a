"""Panels of a picture: their places, their scales, and the title, legend and remark above them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedif_studies.pictures.svg import Drawing, Kind, Look, width_of

P = TypeVar("P")  # What a panel shows.

_HORIZONTAL_LINES = 6  # At most one more is drawn, see Scale.ticks.
_ROOM = 0.06  # Room at both ends of a scale, as a share of the range of its values.
_ALLOWANCE = 1e-9  # In steps: a tick this far outside of a scale is there all the same (rounding).


@dataclass(frozen=True)
class Sheet:
    """A width that pictures are drawn for, and the size of the font in it.

    Attributes
    ----------
    width : int
        The width of the picture, in pixels.
    size : int
        The size of the font, in pixels. A wide picture has a larger one, since most pages show it
        at two thirds of its size.
    """

    width: int
    size: int

    @property
    def is_narrow(self) -> bool:
        """Whether it is for the screen of a telephone."""
        return self.width < 600


SHEETS = (Sheet(380, 13), Sheet(1240, 17))


@dataclass(frozen=True)
class Scale:
    """A scale that maps values to places in pixels.

    Attributes
    ----------
    low, high : float
        The values at both ends, ``low < high``; with ``is_log``, ``low > 0``.
    start, end : float
        The places of ``low`` and ``high``, in pixels.
    is_log : bool
        Whether the scale is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return a value's place, in pixels."""
        low = self._on_axis(self.low)
        high = self._on_axis(self.high)
        length = self.end - self.start
        return self.start + length * (self._on_axis(value) - low) / (high - low)

    def _on_axis(self, value: float) -> float:
        """Return the value, or its logarithm if the scale is logarithmic."""
        if self.is_log:
            return math.log10(value)
        return value

    def ticks(self, most: int) -> list[float]:
        """Return round values between both ends, at most ``most + 1``.

        On a logarithmic scale they are powers of ten, at most ``most``.
        """
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
    """Return the least number >= ``least`` that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    for factor in (1, 2, 5):
        if factor * power >= least * (1 - _ALLOWANCE):
            return factor * power
    return 10 * power


def limits(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of a scale for values, with some room beyond the least and the largest."""
    all_values = list(values)
    low = min(all_values)
    high = max(all_values)
    around = _ROOM * (high - low)
    if not around:
        around = 1.0
    return low - around, high + around


@dataclass(frozen=True)
class Box:
    """The area of a panel in which its values are drawn, in pixels."""

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
class PanelGrid:
    """The places of panels in rows, with room for words around each panel.

    Attributes
    ----------
    boxes : tuple of Box
        The area of each panel, row by row.
    bottom : float
        Where the last row ends, including the room below it.
    across : int
        How many panels are in a row.
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
) -> PanelGrid:
    """Return the places of panels; all lengths are in pixels.

    Parameters
    ----------
    sheet : Sheet
        The sheet that they are drawn on.
    count, across : int
        The number of panels, and of panels in a row.
    start : float
        Where the first row begins, including the room above it.
    height : float
        The height of a panel's area.
    above, below : float
        The room above and below each panel.
    left : float
        The room at the left of a row.
    each_left : float
        The room at the left of every panel, beyond ``left``.
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
    return PanelGrid(tuple(boxes), start + rows * (above + height + below), across)


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
        The picture that they are added to.
    sheet : Sheet
        The sheet that they are drawn on.
    panels : sequence
        What each panel shows.
    draw_panel : callable
        Draws one panel: ``draw_panel(drawing, box, panel)``.
    across : int
        How many panels are in a row.
    **room : float
        ``start``, ``height``, ``above``, ``below``, ``left``, ``each_left`` of :func:`panel_grid`.
    """
    grid = panel_grid(sheet, len(panels), across, **room)
    for panel, box in zip(panels, grid.boxes, strict=True):
        draw_panel(drawing, box, panel)
    return grid.bottom


Entry = tuple[Look, Kind, str]
"""An entry of a legend: a point's look and kind, and the words beside it."""


def draw_legend(drawing: Drawing, sheet: Sheet, top: float, entries: Sequence[Entry]) -> float:
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


def draw_heading(drawing: Drawing, sheet: Sheet, words: str) -> float:
    """Write the picture's title, in as many lines as it needs, and return where it ends."""
    y = 0.4 * sheet.size
    for line in wrapped(words, sheet.width - 1.2 * sheet.size, sheet.size, is_bold=True):
        y += 1.35 * sheet.size
        drawing.text((0.6 * sheet.size, y), line, classes="bold")
    return y + 0.3 * sheet.size


def draw_remark(drawing: Drawing, sheet: Sheet, top: float, words: str) -> float:
    """Write how to read the picture, in as many lines as it needs, and return where it ends."""
    y = top
    for line in wrapped(words, sheet.width - 1.2 * sheet.size, sheet.size):
        y += 1.3 * sheet.size
        drawing.text((0.6 * sheet.size, y), line, classes="quiet")
    return y + 0.4 * sheet.size


def wrapped(words: str, width: float, size: float, *, is_bold: bool = False) -> list[str]:
    """Return words broken into lines of about this width at most."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer, size, is_bold=is_bold) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def draw_horizontal_lines(
    drawing: Drawing, box: Box, scale: Scale, *, labelled: bool = True
) -> None:
    """Draw a line at each round value, with the value at its left if ``labelled``."""
    size = drawing.size
    for value in scale.ticks(_HORIZONTAL_LINES):
        y = scale(value)
        drawing.line((box.left, y), (box.right, y))
        if labelled:
            place = (box.left - 0.35 * size, y + 0.34 * size)
            drawing.text(place, f"{value:g}", anchor="end", classes="quiet")


def draw_vertical_lines(drawing: Drawing, box: Box, scale: Scale, *, most: int) -> None:
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
    """Return the text of a picture's SVG file: title, legend, how to read it, and the panels.

    Parameters
    ----------
    sheet : Sheet
        The width of the picture.
    title, finding : str
        What the picture shows, and a sentence on what one sees in it, for a screen reader.
    entries : sequence of Entry
        The legend.
    marks : str
        How to read the picture.
    body : callable
        ``body(drawing, top)`` draws the panels below ``top``, and returns where they end.
    """

    def draw_with(height: float) -> tuple[Drawing, float]:
        """Return a drawing of this height, and where its contents really end."""
        drawing = Drawing(sheet.width, height, title, finding, sheet.size)
        top = draw_heading(drawing, sheet, title)
        top = draw_legend(drawing, sheet, top, entries)
        top = draw_remark(drawing, sheet, top, marks)
        return drawing, body(drawing, top)

    # The file begins with its height, which is known only once all is drawn: it is drawn twice.
    _, end = draw_with(0.0)
    drawing, _ = draw_with(round(end + 0.6 * sheet.size))
    return drawing.to_text()
