"""The picture of removal curves: a panel for each data set and case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from fedif_studies.audit.removal import RETRAINED_VALUES, CaseCurves
from fedif_studies.audit.valuations import CONTROL
from fedif_studies.pictures.panels import (
    Box,
    Entry,
    Scale,
    Sheet,
    compose,
    draw_horizontal_lines,
    draw_panels,
    draw_vertical_lines,
    limits,
)
from fedif_studies.pictures.sheets import Picture
from fedif_studies.pictures.svg import Drawing, Kind, Look, Place

# The valuations that are drawn. More lines could not be told apart.
LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        RETRAINED_VALUES: Look("black", "circle"),
        "path attribution (simpson)": Look("orange", "square"),
        CONTROL: Look("purple", "diamond"),
        "AFedSV Omega": Look("green", "triangle"),
        "FedIF Omega": Look("blue", "star"),
    }
)


class RemovalPanel(NamedTuple):
    """The panel of a case of a data set; ``curves`` is ``None`` if no coalitions were trained."""

    data: str
    case: str
    curves: CaseCurves | None

    @property
    def title(self) -> str:
        """The title of the panel."""
        return f"{self.data}, {self.case}"

    def drawn(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return both curves of each valuation, in percent, in the order of the legend."""
        if self.curves is None:
            return {}
        drawn = {}
        for name in LOOKS:
            if name in self.curves.by_name:
                curves = self.curves.by_name[name]
                drawn[name] = (_percent(curves.lowest_first), _percent(curves.highest_first))
        return drawn


def _percent(accuracies: Tensor) -> Tensor:
    """Return accuracies in percent, rounded: sums in another order differ in the last digits."""
    return (100 * accuracies).round(decimals=6)


def removal_picture(panels: Sequence[RemovalPanel]) -> Picture:
    """Return the picture with these panels."""
    title = "Test accuracy in % of those who stay, by how many members are gone"
    finding = removal_finding(panels)

    def draw(sheet: Sheet) -> str:
        return _draw(panels, sheet, title, finding)

    return Picture("removal", title, finding, _missing(panels), draw)


def removal_finding(panels: Sequence[RemovalPanel]) -> str:
    """Return sentences with the area between each valuation's curves, in points, by case."""
    sentences = []
    for panel in panels:
        if panel.curves is None:
            continue
        areas = {}
        for name in panel.drawn():
            areas[name] = round(100 * panel.curves.by_name[name].area, 6)
        ordered = sorted(areas, key=lambda name: -areas[name])
        listed = ", ".join(f"{name} {areas[name]:.1f}" for name in ordered)
        sentences.append(f"{panel.title}: {listed}.")
    if not sentences:
        return "No coalitions were trained."
    begin = "Area between leaving lowest first and highest first, in points (0 at random)."
    return " ".join([begin, *sentences])


def _missing(panels: Sequence[RemovalPanel]) -> str:
    """Return how many pairs of curves are missing, and how many trainings the others average."""
    num_drawn = 0
    counts = []
    for panel in panels:
        num_drawn += len(panel.drawn())
        if panel.curves is not None:
            counts.append(f"{panel.title}: {panel.curves.seeds}")
    count = len(panels) * len(LOOKS)
    words = f"Missing: {count - num_drawn} of {count} pairs of curves."
    if counts:
        words += f" Trainings of each of the coalitions: {'; '.join(counts)}."
    return words


def _draw(panels: Sequence[RemovalPanel], sheet: Sheet, title: str, finding: str) -> str:
    entries: list[Entry] = [(look, "filled", name) for name, look in LOOKS.items()]
    marks = (
        "Filled: members of lowest value leave first; hollow: of highest value. Dashed: the mean "
        "of all orders. Every group that stays was trained from scratch."
    )
    across = len(panels)
    height = 320.0
    if sheet.is_narrow:
        across = 1
        height = 170.0

    def body(drawing: Drawing, top: float) -> float:
        return draw_panels(
            drawing,
            sheet,
            panels,
            _draw_panel,
            across,
            start=top,
            height=height,
            above=2.0 * sheet.size,
            below=2.7 * sheet.size,
            each_left=2.4 * sheet.size,
        )

    return compose(sheet, title, finding, entries, marks, body)


def _draw_panel(drawing: Drawing, box: Box, panel: RemovalPanel) -> None:
    size = drawing.size
    middle = box.left + box.width / 2
    drawing.text((middle, box.top - 0.6 * size), panel.title, anchor="middle")
    if panel.curves is None:
        centre = (middle, box.top + box.height / 2)
        drawing.text(centre, "not trained yet", anchor="middle", classes="quiet")
        return
    drawn = panel.drawn()
    at_random = _percent(panel.curves.at_random)
    values = [*at_random.tolist()]
    for lowest_first, highest_first in drawn.values():
        values += [*lowest_first.tolist(), *highest_first.tolist()]
    low, high = limits(values)
    up = Scale(low, high, box.bottom, box.top)
    along = Scale(0.0, len(at_random) - 1.0, box.left + 0.5 * size, box.right - 0.5 * size)
    draw_horizontal_lines(drawing, box, up)
    draw_vertical_lines(drawing, box, along, most=5)
    drawing.text(
        (middle, box.bottom + 2.3 * size), "members gone", anchor="middle", classes="quiet"
    )
    for start, end in pairwise(_places(along, up, at_random)):
        drawing.line(start, end, "axis dashed")
    for name, (lowest_first, highest_first) in drawn.items():
        _draw_curve(drawing, along, up, name, lowest_first, "filled")
        _draw_curve(drawing, along, up, name, highest_first, "hollow")


def _places(along: Scale, up: Scale, curve: Tensor) -> list[Place]:
    """Return the places of a curve's m points, by how many members are gone."""
    return [(along(gone), up(accuracy)) for gone, accuracy in enumerate(curve.tolist())]


def _draw_curve(
    drawing: Drawing, along: Scale, up: Scale, name: str, curve: Tensor, kind: Kind
) -> None:
    """Draw a curve with a point for every number of members gone but 0, where all curves meet."""
    look = LOOKS[name]
    places = _places(along, up, curve)
    drawing.curve(places, look.colour)
    order = "lowest first" if kind == "filled" else "highest first"
    for gone, (place, accuracy) in enumerate(zip(places, curve.tolist(), strict=True)):
        if gone:
            note = f"{name}, {order}, {gone} gone: {accuracy:.1f}"
            drawing.point(place, look, kind, note)
