"""Pictures of the AUC of scores and of the seconds of aggregation, as dots on lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedif_studies.lab.cells import title_of_data
from fedif_studies.paper.cells import TableCell, keys_of
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
    Point,
    count_missing,
    in_column,
    note_of,
    points_of,
)
from fedif_studies.paper.tables import TABLES, PaperTable, Variant
from fedif_studies.pictures.dots import Dot, DotPanel, DotPlot, Line
from fedif_studies.pictures.panels import Entry, Sheet
from fedif_studies.pictures.sheets import Picture

_SCORED = ("fedif", "afedsv")  # The methods whose scores are said to find malicious clients.


def auc_picture(filled: Filled) -> Picture:
    """Return the picture of the AUC of scores, with a line for each column of the tables."""
    title = "AUC of scores: low scores as a sign of who is malicious (1: perfect, 0.5: chance)"
    cells_by_data = {data: _scored_cells(filled, data) for data in DATA}
    finding = auc_finding(cells_by_data)
    panels = []
    for data, cells in cells_by_data.items():
        panels.append(DotPanel(data, "", _auc_lines(cells)))
    plot = DotPlot(panels, _low_end(panels), 1.02, at=0.5)
    entries: list[Entry] = [(LOOKS[key], "filled", _title_of(key)) for key in _SCORED]
    marks = "Filled: measured here; with a hole: on a GPU. The paper prints none."

    def draw(sheet: Sheet) -> str:
        return plot.draw(sheet, title, finding, entries, marks)

    return Picture("auc", title, finding, _missing_scores(cells_by_data), draw)


def _scored_cells(filled: Filled, data: str) -> list[TableCell]:
    """Return the cells of a data set's tables that have an AUC once they are measured."""
    cells: list[TableCell] = []
    for name in DATA[data]:
        cells += filter(_has_scores, filled[name])
    return cells


def _has_scores(cell: TableCell) -> bool:
    """Tell whether a cell's method scores clients, some of which are malicious."""
    return cell.row.key in _SCORED and "attack" in cell.column.settings


def _missing_scores(cells_by_data: Mapping[str, Sequence[TableCell]]) -> str:
    """Return how many cells have no AUC; a cell that both a CPU and a GPU measured counts once."""
    count = 0
    measured = 0
    for cells in cells_by_data.values():
        count += len(keys_of(cells))
        for cell in one_each(cells):
            if cell.mean(AUC) is not None:
                measured += 1
    return f"Missing here: {count - measured} of {count} cells."


def _low_end(panels: Iterable[DotPanel]) -> float:
    """Return the low end of the scale, below 0.5 (chance) and below every point."""
    low = 0.45
    for panel in panels:
        for line in panel.lines:
            for dot in line.dots:
                low = min(low, dot.value - 0.03)
    return low


def _title_of(method: str) -> str:
    """Return a method's title. Any table of accuracies has all methods."""
    titles = {row.key: row.title for row in TABLES["cifar10"].rows}
    return titles[method]


def _auc_lines(cells: Sequence[TableCell]) -> list[Line]:
    """Return a line for each column, with a point for each method above and below it."""
    # A column without a point has its line, too.
    dots: dict[str, list[Dot]] = {cell.column.title: [] for cell in cells}
    for point in points_of(cells, lambda cell: cell.mean(AUC), lambda _: None):
        dots[point.column.title].append(_auc_dot(point))
    return [Line(title, dots_of_column) for title, dots_of_column in dots.items()]


def _auc_dot(point: Point) -> Dot:
    look = LOOKS[point.row.key]
    note = note_of(point, ".3f")
    up = -0.4
    if point.row.key == _SCORED[0]:
        up = 0.4
    return Dot(look, point.kind, point.figure.mean, note, up=up)


def seconds_picture(table: PaperTable, cells: Sequence[TableCell]) -> Picture:
    """Return the picture of seconds of aggregation here and in the paper, a line per method."""
    title = "Seconds of aggregation in a round, on a logarithmic scale"
    finding = seconds_finding(table, cells)
    points = points_of(
        cells,
        lambda cell: cell.mean(AGGREGATION),
        lambda cell: printed_seconds(table, cell.row.key, cell.column.key),
    )
    panels = []
    for column in table.columns:
        points_of_column = in_column(points, column)
        lines = [_seconds_line(row, points_of_column) for row in table.rows]
        panels.append(DotPanel(title_of_data(column.key), "", lines))
    seconds = [point.figure.mean for point in points]
    plot = DotPlot(panels, min(seconds) / 2, max(seconds) * 2, is_log=True)
    marks = MARKS.partition(" Bars")[0]

    def draw(sheet: Sheet) -> str:
        return plot.draw(sheet, title, finding, [], f"{marks} {LEFT_OUT}")

    return Picture("seconds", title, finding, count_missing(cells), draw)


def _seconds_line(row: Variant, points: Iterable[Point]) -> Line:
    """Return a method's line, with those points of a column that belong to the method."""
    look = LOOKS[row.key]
    dots = []
    for point in points:
        if point.row.key == row.key:
            note = note_of(point, ".4f")
            dots.append(Dot(look, point.kind, point.figure.mean, note))
    return Line(row.title, dots)
