"""The picture of FedAvg's, FedIF's and AFedSV's accuracy over rounds in the heaviest columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.cells import TableCell, of_column
from fedif_studies.paper.curves import Curve, Curves
from fedif_studies.paper.findings import curves_finding
from fedif_studies.paper.points import DATA, LOOKS, Filled
from fedif_studies.paper.tables import TABLES, PaperTable, Variant
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
from fedif_studies.pictures.svg import Drawing, Kind

_DRAWN = ("fedavg", "fedif", "afedsv")
_LAST = 100  # The round that the paper's figures are of.
_POINTS = 20  # The number of rounds from one point on a curve to the next.


class CurvePanel(NamedTuple):
    """A panel with the curves of a column of the paper's tables.

    ``rows`` are the methods to draw. By a method's key, ``curves`` has its accuracies, ``kinds``
    the look of its points (a GPU's curve differs from a CPU's) and ``printed`` the paper's figure.
    """

    title: str
    rows: Sequence[Variant]
    curves: Mapping[str, Curve]
    kinds: Mapping[str, Kind]
    printed: Mapping[str, MeanStd]


def heaviest(table: PaperTable, attack: str) -> Variant:
    """Return an attack's column with most malicious clients, and of these the strongest attack."""
    columns = [column for column in table.columns if column.settings.get("attack") == attack]

    def weight(column: Variant) -> tuple[float, float, float]:
        settings = column.settings
        share = float(settings["malicious-fraction"])
        poisoned = float(settings.get("poison-ratio-max", 0.0))
        noise = float(settings.get("gradient-noise.std", 0.0))
        return share, poisoned, noise

    return max(columns, key=weight)


def curve_panels(filled: Filled, curves: Mapping[str, Curves]) -> list[CurvePanel]:
    """Return four panels: the heaviest label noise and gradient noise on both data sets."""
    panels = []
    for data, (poisoned, noisy) in DATA.items():
        for name, attack in ((poisoned, "label-noise"), (noisy, "gradient-noise")):
            column = heaviest(TABLES[name], attack)
            cells = of_column(filled[name], column)
            title = f"{data}, {column.title}"
            panels.append(_curve_panel(title, TABLES[name], cells, curves[name]))
    return panels


def _curve_panel(
    title: str, table: PaperTable, cells: Sequence[TableCell], curves: Curves
) -> CurvePanel:
    """Return the panel of a column. A method's curve is that of a CPU, or else of a GPU."""
    drawn: dict[str, Curve] = {}
    kinds: dict[str, Kind] = {}
    printed = {}
    # A CPU's cell has gpu = "" and sorts first.
    for cell in sorted(cells, key=lambda cell: cell.gpu):
        curve = curves.mean(cell)
        if curve and cell.row.key not in drawn:
            drawn[cell.row.key] = curve
            kinds[cell.row.key] = "holed" if cell.gpu else "filled"
        if cell.paper is not None:
            printed[cell.row.key] = cell.paper
    rows = [row for row in table.rows if row.key in _DRAWN]
    return CurvePanel(title, rows, drawn, kinds, printed)


def curves_picture(filled: Filled, curves: Mapping[str, Curves]) -> Picture:
    """Return the picture of the three methods' accuracy over rounds."""
    title = "Test accuracy in % over rounds under the heaviest label noise and gradient noise"
    panels = curve_panels(filled, curves)
    finding = curves_finding({panel.title: _last_accuracies(panel) for panel in panels})

    def draw(sheet: Sheet) -> str:
        return _draw_curves(panels, sheet, title, finding)

    return Picture("curves", title, finding, _missing_curves(panels), draw)


def _last_accuracies(panel: CurvePanel) -> dict[str, float]:
    """Return the last accuracy in percent of each method with a curve, by the method's title."""
    accuracies = {}
    for row in panel.rows:
        if row.key in panel.curves:
            _, accuracy = panel.curves[row.key][-1]
            accuracies[row.title] = 100 * accuracy
    return accuracies


def _missing_curves(panels: Sequence[CurvePanel]) -> str:
    """Return a sentence on how many curves are missing, and which."""
    count = 0
    num_curves = 0
    by_panel = []
    for panel in panels:
        absent = [row.title for row in panel.rows if row.key not in panel.curves]
        count += len(absent)
        num_curves += len(panel.rows)
        if absent:
            by_panel.append(f"{panel.title}: {', '.join(absent)}")
    words = f"Missing: {count} of {num_curves} curves"
    if by_panel:
        words += f". {'; '.join(by_panel)}"
    return f"{words}."


def _draw_curves(panels: Sequence[CurvePanel], sheet: Sheet, title: str, finding: str) -> str:
    """Return the SVG text for a sheet: a panel for each column, each on its own scale."""
    entries: list[Entry] = [(LOOKS[row.key], "filled", row.title) for row in panels[0].rows]
    marks = (
        f"Means over seeds, a point at every {_POINTS}th round (with a hole: on a GPU). Hollow, at "
        "the right: the paper. A curve begins where it comes into its panel."
    )
    across = len(panels)
    height = 300.0
    above = 3.2
    if sheet.is_narrow:
        across = 1
        height = 150.0
        above = 2.0

    def body(drawing: Drawing, top: float) -> float:
        return draw_panels(
            drawing,
            sheet,
            panels,
            partial(_draw_curve_panel, across=across),
            across,
            start=top,
            height=height,
            above=above * sheet.size,
            below=2.7 * sheet.size,
            each_left=3.0 * sheet.size,  # Room for a label such as 86.5.
        )

    return compose(sheet, title, finding, entries, marks, body)


def _draw_curve_panel(drawing: Drawing, box: Box, panel: CurvePanel, across: int) -> None:
    """Draw a panel: its scales, its methods' curves, and the paper's figures at the right."""
    size = drawing.size
    low, high = limits(_values_in_view(panel))
    up = Scale(low, high, box.bottom, box.top)
    # The paper's figures have room at the right of the last round.
    along = Scale(0.0, _LAST, box.left, box.right - 1.6 * size)
    draw_horizontal_lines(drawing, box, up)
    draw_vertical_lines(
        drawing, Box(box.left, box.top, along.end - box.left, box.height), along, most=5
    )
    _write_panel(drawing, box, panel, across)
    for row in panel.rows:
        if row.key in panel.curves:
            _draw_curve(drawing, along, up, row, panel)
    for row in panel.rows:
        figure = panel.printed.get(row.key)
        if figure is not None:
            place = (box.right - 0.5 * size, up(figure.mean))
            note = f"{row.title}, paper: {figure.shown('.2f')}"
            drawing.point(place, LOOKS[row.key], "hollow", note)


def _values_in_view(panel: CurvePanel) -> list[float]:
    """Return the values in percent that a panel's scale has to hold."""
    values = []
    for row in panel.rows:
        for number, accuracy in panel.curves.get(row.key, ()):
            # Earlier rounds are left out: the steep beginning would take most of the height.
            if number >= _POINTS:
                values.append(100 * accuracy)
        if row.key in panel.printed:
            values.append(panel.printed[row.key].mean)
    return values


def _draw_curve(drawing: Drawing, along: Scale, up: Scale, row: Variant, panel: CurvePanel) -> None:
    """Draw a method's curve, with a point at every 20th round and at the last one."""
    look = LOOKS[row.key]
    curve = [point for point in panel.curves[row.key] if 100 * point[1] >= up.low]
    drawing.curve([(along(n), up(100 * accuracy)) for n, accuracy in curve], look.colour)
    for number, accuracy in curve:
        if number % _POINTS == 0 or number == curve[-1][0]:
            note = f"{row.title}, round {number}: {100 * accuracy:.2f}"
            drawing.point((along(number), up(100 * accuracy)), look, panel.kinds[row.key], note)


def _write_panel(drawing: Drawing, box: Box, panel: CurvePanel, across: int) -> None:
    """Write a panel's title, in two lines where several panels share a row, and its axis label."""
    size = drawing.size
    middle = box.left + box.width / 2
    below = (middle, box.bottom + 2.3 * size)
    drawing.text(below, "round", anchor="middle", classes="quiet")
    data, _, column = panel.title.partition(", ")
    if across == 1:
        drawing.text((middle, box.top - 0.6 * size), panel.title, anchor="middle")
    else:
        drawing.text((middle, box.top - 1.75 * size), data, anchor="middle")
        drawing.text((middle, box.top - 0.5 * size), column, anchor="middle")
    if not panel.curves:
        centre = (middle, box.top + box.height / 2)
        drawing.text(centre, "no curve here yet", anchor="middle", classes="quiet")
