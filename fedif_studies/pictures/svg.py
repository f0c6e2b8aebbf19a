"""A picture as SVG: a few shapes, written by hand.

The pictures of the documentation are committed beside the rows that they show, and a test draws
them again and compares. matplotlib's files differ between its versions; these are always the same.
A file is both light and dark: its style follows the reader's colour scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Literal

from fedif_flower.run import palette

Kind = Literal["filled", "holed", "hollow"]
"""How a point is drawn: filled with its colour, filled but for a hole, or as an outline."""
Anchor = Literal["start", "middle", "end"]
Place = tuple[float, float]

_CHARACTER = 0.56  # The mean width of a character, in font sizes.
_CAPITAL = 0.7  # The mean width of a capital letter; names of methods have many.
_BOLD = 1.12  # A bold character is so many times as wide.
_LIGHT = {
    "ground": "#ffffff",
    "ink": "#1b1f24",
    "quiet": "#57606a",
    "grid": "#d8dee4",
    "axis": "#6e7781",
    "black": palette.BLACK,
    "orange": palette.ORANGE,
    "sky": palette.SKY,
    "green": palette.GREEN,
    "blue": palette.BLUE,
    "vermillion": palette.VERMILLION,
    "purple": palette.PURPLE,
}
# The colours on a dark ground. Those not listed are light enough to stay as they are.
_DARK = {
    **_LIGHT,
    "ground": "#14181f",
    "ink": "#e6edf3",
    "quiet": "#a5b0bc",
    "grid": "#30363d",
    "axis": "#8b949e",
    "black": "#f0f6fc",
    "blue": palette.SKY,
    "sky": palette.YELLOW,
}
_COLOURS = ("black", "orange", "sky", "green", "blue", "vermillion", "purple")
# The number of corners of each shape. A circle has none.
_CORNERS = {"square": 4, "diamond": 4, "triangle": 3, "wedge": 3, "star": 10}


@dataclass(frozen=True)
class Look:
    """The colour and the shape of points, by which a reader tells one method from another."""

    colour: str
    shape: str


def width_of(words: str, size: float, *, is_bold: bool = False) -> float:
    """Return the width of words in pixels, roughly: readers have different fonts."""
    num_capitals = sum(character.isupper() for character in words)
    num_others = len(words) - num_capitals
    width = size * (_CAPITAL * num_capitals + _CHARACTER * num_others)
    return _BOLD * width if is_bold else width


class Drawing:
    """A picture in the making: each method adds a shape or words to it.

    Places are (x, y) in pixels; y grows downwards.

    Parameters
    ----------
    width, height : float
        The size of the picture, in pixels.
    title, description : str
        Texts that a screen reader reads out.
    size : float
        The size of the font, in pixels.
    """

    def __init__(
        self, width: float, height: float, title: str, description: str, size: float
    ) -> None:
        self.size = size
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>{_style(size)}</style>",
            f'<rect class="ground" width="{width:g}" height="{height:g}"/>',
        ]

    def text(
        self, place: Place, words: str, *, anchor: Anchor = "start", classes: str = ""
    ) -> None:
        """Write words with their baseline at a place; ``classes`` are ``quiet`` or ``bold``."""
        x, y = place
        shown = f' class="{classes}"' if classes else ""
        at = f'x="{_number(x)}" y="{_number(y)}"'
        if anchor != "start":
            at += f' text-anchor="{anchor}"'
        self._parts.append(f"<text {at}{shown}>{escape(words)}</text>")

    def line(self, start: Place, end: Place, classes: str = "grid") -> None:
        """Draw a straight line.

        ``classes`` are ``grid``, ``axis`` or ``bar`` with a colour; ``dashed`` can be added.
        """
        x1, y1 = map(_number, start)
        x2, y2 = map(_number, end)
        ends = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
        self._parts.append(f'<line class="{classes}" {ends}/>')

    def curve(self, places: Iterable[Place], colour: str) -> None:
        """Draw a line through places."""
        points = " ".join(f"{_number(x)},{_number(y)}" for x, y in places)
        self._parts.append(f'<polyline class="curve {colour}" points="{points}"/>')

    def point(self, place: Place, look: Look, kind: Kind, note: str = "") -> None:
        """Draw a point.

        Parameters
        ----------
        place : tuple of float
            The point's middle.
        look : Look
            The point's colour and shape.
        kind : {"filled", "holed", "hollow"}
            How the point is drawn.
        note : str
            The text that is shown while the pointer is over the point; empty in a legend.
        """
        radius = 0.36 * self.size
        shown = f"<title>{escape(note)}</title>" if note else ""
        path = _outline(place, look.shape, radius)
        self._parts.append(f'<path class="{kind} {look.colour}" d="{path}">{shown}</path>')
        if kind == "holed":
            x, y = place
            hole = f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(0.4 * radius)}"'
            self._parts.append(f'<circle class="ground" {hole}/>')

    def to_text(self) -> str:
        """Return the text of the SVG file."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def _outline(place: Place, shape: str, radius: float) -> str:
    """Return a path around a point."""
    if shape == "circle":
        return _circle(place, radius)
    x, y = place
    corners = _CORNERS[shape]
    turn = 0.0  # The first corner is at the top.
    if shape == "square":
        turn = math.pi / corners  # A square stands on a side, and a diamond on a corner.
    elif shape == "wedge":
        turn = math.pi  # A wedge is a triangle upside down.
    steps = []
    for corner in range(corners):
        angle = turn + 2 * math.pi * corner / corners
        reach = _reach(shape, corner) * radius
        right = reach * math.sin(angle)
        up = reach * math.cos(angle)
        steps.append(f"{_number(x + right)} {_number(y - up)}")
    return f"M{'L'.join(steps)}z"


def _circle(place: Place, radius: float) -> str:
    """Return a path of two half circles, from the leftmost point to the rightmost and back."""
    x, y = place
    r = _number(radius)
    diameter = _number(2 * radius)
    there = f"a{r} {r} 0 1 0 {diameter} 0"
    back = f"a{r} {r} 0 1 0 -{diameter} 0"
    return f"M{_number(x - radius)} {_number(y)}{there}{back}z"


def _reach(shape: str, corner: int) -> float:
    """Return how far a corner is from the middle, in radii, so that all shapes look as large."""
    if shape != "star":
        return 1.25
    is_inner = corner % 2 == 1
    return 0.68 if is_inner else 1.45


def _number(value: float) -> str:
    """Return a coordinate as text, in tenths of a pixel; minus zero becomes ``0``."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _style(size: float) -> str:
    """Return the style sheet: light colours, and dark ones if the reader's system asks for them."""
    shapes = (
        f"text{{font:{size:g}px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}}"
        ".bold{font-weight:600}"
        ".grid,.axis{stroke-width:1;fill:none}"
        ".bar{stroke-width:2;fill:none}"
        ".dashed{stroke-dasharray:5 4}"
        ".curve{stroke-width:2.2;fill:none;stroke-linejoin:round}"
        ".filled,.holed,.hollow{stroke-width:1.8}"
    )
    return f"{shapes}{_colours(_LIGHT)}@media(prefers-color-scheme:dark){{{_colours(_DARK)}}}"


def _colours(scheme: dict[str, str]) -> str:
    rules = [
        f"text{{fill:{scheme['ink']}}}",
        f".quiet{{fill:{scheme['quiet']}}}",
        f".grid{{stroke:{scheme['grid']}}}",
        f".axis{{stroke:{scheme['axis']}}}",
    ]
    rules += [f".{name}{{fill:{scheme[name]};stroke:{scheme[name]}}}" for name in _COLOURS]
    # These rules follow those of the colours, whose fill they override.
    rules.append(".curve,.bar{fill:none}")
    rules.append(f".hollow,.ground{{fill:{scheme['ground']}}}")
    return "".join(rules)
