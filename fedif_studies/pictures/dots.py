"""Dot plots: panels with a named line for each item, and points on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from fedif_studies.pictures.panels import (
    Box,
    Entry,
    Scale,
    Sheet,
    compose,
    draw_panels,
    draw_vertical_lines,
)
from fedif_studies.pictures.svg import Drawing, Kind, Look

_ROW = 1.85  # The height of a line, in font sizes.


class Dot(NamedTuple):
    """A point on a line.

    ``note`` is shown while the pointer is over it. ``deviation`` is how far its bar reaches to both
    sides; 0 for no bar. ``up`` is how far above its line it stands, in font sizes, so that points
    of one line do not hide each other.
    """

    look: Look
    kind: Kind
    value: float
    note: str
    deviation: float = 0.0
    up: float = 0.0


class Line(NamedTuple):
    """A line of a panel: its name, and its points."""

    name: str
    dots: Sequence[Dot]


class DotPanel(NamedTuple):
    """A panel: its title in bold, words below the title (may be empty), and its lines."""

    title: str
    words: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class DotPlot:
    """Panels that share a scale.

    Attributes
    ----------
    panels : sequence of DotPanel
        The panels.
    low, high : float
        The values at both ends of the scale.
    across : int
        How many panels are in a row; on a narrow sheet there is one.
    at : float, optional
        A value that a dashed line marks.
    is_log : bool
        Whether the scale is logarithmic.
    """

    panels: Sequence[DotPanel]
    low: float
    high: float
    across: int = 2
    at: float | None = None
    is_log: bool = False

    def draw(
        self, sheet: Sheet, title: str, finding: str, entries: Sequence[Entry], marks: str
    ) -> str:
        """Return the SVG text; see :func:`~fedif_studies.pictures.panels.compose`."""
        body = partial(self._draw_panels, sheet)
        return compose(sheet, title, finding, entries, marks, body)

    def _draw_panels(self, sheet: Sheet, drawing: Drawing, top: float) -> float:
        """Draw all panels, and return where they end."""
        size = sheet.size
        longest = max(_longest_name(panel) for panel in self.panels)
        most_lines = max(len(panel.lines) for panel in self.panels)
        above = 2.2 * size
        if any(panel.words for panel in self.panels):
            above = 3.5 * size
        across = self.across
        if sheet.is_narrow:
            across = 1
        return draw_panels(
            drawing,
            sheet,
            self.panels,
            self._draw_panel,
            across,
            start=top,
            height=_ROW * size * most_lines,
            above=above,
            below=1.9 * size,
            each_left=1.2 * size + 0.5 * size * longest,
        )

    def _draw_panel(self, drawing: Drawing, box: Box, panel: DotPanel) -> None:
        size = drawing.size
        scale = Scale(self.low, self.high, box.left, box.right, self.is_log)
        draw_vertical_lines(drawing, box, scale, most=6)
        if self.at is not None:
            x = scale(self.at)
            drawing.line((x, box.top), (x, box.bottom), "axis dashed")
        _write_title(drawing, box, panel)
        for index, line in enumerate(panel.lines):
            y = box.top + (index + 0.5) * _ROW * size
            drawing.line((box.left, y), (box.right, y))
            drawing.text((box.left - 0.6 * size, y + 0.34 * size), line.name, anchor="end")
            for dot in line.dots:
                _draw_dot(drawing, scale, y, dot)


def _longest_name(panel: DotPanel) -> int:
    return max(len(line.name) for line in panel.lines)


def _write_title(drawing: Drawing, box: Box, panel: DotPanel) -> None:
    size = drawing.size
    if not panel.words:
        drawing.text((box.left, box.top - 0.7 * size), panel.title, classes="bold")
        return
    # Words are long, so title and words begin further left, where the lines' names begin.
    start = box.left - 0.6 * size - 0.5 * size * _longest_name(panel)
    drawing.text((start, box.top - 1.95 * size), panel.title, classes="bold")
    drawing.text((start, box.top - 0.6 * size), panel.words)


def _draw_dot(drawing: Drawing, scale: Scale, line: float, dot: Dot) -> None:
    y = line - dot.up * drawing.size
    if dot.deviation:
        low = (scale(dot.value - dot.deviation), y)
        high = (scale(dot.value + dot.deviation), y)
        drawing.line(low, high, f"bar {dot.look.colour}")
    drawing.point((scale(dot.value), y), dot.look, dot.kind, dot.note)
