"""The AUC of scores and the seconds of aggregation, a line for each column or method."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from fedif_studies.lab.cells import title_of_data
from fedif_studies.paper.cells import TableCell
from fedif_studies.paper.findings import (
    AGGREGATION,
    AUC,
    LEFT_OUT,
    auc_finding,
    one_each,
    printed_seconds,
    seconds_finding,
)
from fedif_studies.paper.points import (
    DATA,
    LOOKS,
    MARKS,
    Filled,
    count_missing,
    note_of,
    points_of,
)
from fedif_studies.paper.tables import TABLES, PaperTable
from fedif_studies.pictures.dots import Dot, DotPanel, DotPlot, Line
from fedif_studies.pictures.panels import Entry, Sheet
from fedif_studies.pictures.sheets import Picture

_SCORED = ("fedif", "afedsv")  # Their scores are said to find who is malicious.


def auc_picture(filled: Filled) -> Picture:
    """Return the AUC of scores by column."""
    title = "AUC of scores: low scores as a sign of who is malicious (1: perfect, 0.5: chance)"
    cells_by_data = {}
    for data, names in DATA.items():
        cells = list(itertools.chain.from_iterable(filled[name] for name in names))
        cells_by_data[data] = [cell for cell in cells if _has_scores(cell)]
    places = set()
    measured = 0
    panels = []
    for data, cells in cells_by_data.items():
        places |= {(data, cell.row.key, cell.column.key) for cell in cells}
        measured += sum(cell.mean(AUC) is not None for cell in one_each(cells))
        panels.append(DotPanel(data, "", _auc_lines(cells)))
    missing = f"Missing here: {len(places) - measured} of {len(places)} cells."
    finding = auc_finding(cells_by_data)
    dots = [dot for panel in panels for line in panel.lines for dot in line.dots]
    low = min([0.45, *(dot.value - 0.03 for dot in dots)])
    plot = DotPlot(panels, low, 1.02, at=0.5)
    entries: list[Entry] = [(LOOKS[key], "filled", _title_of(key)) for key in _SCORED]
    marks = "Filled: measured here; with a hole: on a GPU. The paper prints none."

    def draw(sheet: Sheet) -> str:
        return plot.draw(sheet, title, finding, entries, marks)

    return Picture("auc", title, finding, missing, draw)


def _has_scores(cell: TableCell) -> bool:
    """Tell whether a cell's method scores clients, some of which are malicious."""
    return cell.row.key in _SCORED and "attack" in cell.column.settings


def _title_of(key: str) -> str:
    return next(row.title for row in TABLES["cifar10"].rows if row.key == key)


def _auc_lines(cells: Sequence[TableCell]) -> list[Line]:
    """Return a line for each column, with a point for each method above and below it."""
    lines = []
    for title in dict.fromkeys(cell.column.title for cell in cells):
        of_column = [cell for cell in cells if cell.column.title == title]
        dots = []
        for point in points_of(of_column, lambda cell: cell.mean(AUC), lambda _: None):
            up = 0.4 if point.row.key == _SCORED[0] else -0.4
            look = LOOKS[point.row.key]
            dots.append(Dot(look, point.kind, point.figure.mean, note_of(point, ".3f"), up=up))
        lines.append(Line(title, dots))
    return lines


def seconds_picture(table: PaperTable, cells: Sequence[TableCell]) -> Picture:
    """Return seconds of aggregation, here and in the paper."""
    title = "Seconds of aggregation in a round, on a logarithmic scale"
    finding = seconds_finding(table, cells)
    points = points_of(
        cells,
        lambda cell: cell.mean(AGGREGATION),
        lambda cell: printed_seconds(table, cell.row.key, cell.column.key),
    )
    panels = []
    for column in table.columns:
        lines = []
        for row in table.rows:
            shown = [p for p in points if (p.row.key, p.column.key) == (row.key, column.key)]
            dots = [Dot(LOOKS[row.key], p.kind, p.figure.mean, note_of(p, ".4f")) for p in shown]
            lines.append(Line(row.title, dots))
        panels.append(DotPanel(title_of_data(column.key), "", lines))
    seconds = [point.figure.mean for point in points]
    plot = DotPlot(panels, min(seconds) / 2, max(seconds) * 2, is_log=True)
    marks = MARKS.partition(" Bars")[0]

    def draw(sheet: Sheet) -> str:
        return plot.draw(sheet, title, finding, [], f"{marks} {LEFT_OUT}")

    return Picture("seconds", title, finding, count_missing(cells), draw)
