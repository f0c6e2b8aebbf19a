"""The pictures that open ``docs/results.md``, drawn from the rows alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedif_studies.lab.cells import title_of_data
from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.cells import TableCell
from fedif_studies.paper.curves import Curve, Curves, path_of
from fedif_studies.paper.findings import (
    AGGREGATION,
    AUC,
    LAST_TEN,
    accuracy_finding,
    auc_finding,
    curves_finding,
    one_each,
    printed_seconds,
    seconds_finding,
)
from fedif_studies.paper.tables import TABLES, PaperTable, Variant
from fedif_studies.pictures.dots import Dot, DotPanel, DotPlot, Line
from fedif_studies.pictures.panels import (
    Box,
    Entry,
    Scale,
    Sheet,
    compose,
    horizontal_lines,
    limits,
    panel_grid,
    vertical_lines,
)
from fedif_studies.pictures.sheets import Picture, write_picture
from fedif_studies.pictures.svg import Drawing, Kind, Look

Filled = Mapping[str, Sequence[TableCell]]
"""The cells of each table, by its name."""

ACCURACY_TABLES = ("cifar10", "fashion-mnist", "cifar10-gradient", "fashion-mnist-gradient")
_DATA = MappingProxyType(
    {
        "CIFAR-10": ("cifar10", "cifar10-gradient"),
        "Fashion-MNIST": ("fashion-mnist", "fashion-mnist-gradient"),
    }
)
LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "fedavg": Look("black", "circle"),
        "fedprox": Look("purple", "diamond"),
        "krum": Look("orange", "square"),
        "afedsv": Look("green", "triangle"),
        "fedif": Look("blue", "star"),
    }
)
DRAWN_CURVES = ("fedavg", "fedif", "afedsv")
_SCORED = ("fedif", "afedsv")  # Their scores are said to find who is malicious.
_MARKS = (
    "Filled: measured here; with a hole: on a GPU; hollow: the paper. Bars: deviation over seeds."
)
_LAST = 100  # The round that the paper's figures are of.


class Point(NamedTuple):
    """A point of a picture: where it belongs, and its figure.

    It is filled if a CPU measured it here, has a hole if a GPU did, and is hollow if the paper
    printed it.
    """

    row: Variant
    column: Variant
    kind: Kind
    figure: MeanStd


def points_of(
    cells: Iterable[TableCell],
    measured: Callable[[TableCell], MeanStd | None],
    printed: Callable[[TableCell], MeanStd | None],
) -> list[Point]:
    """Return a point for each measured cell, and one for each that the paper prints."""
    points = []
    for cell in cells:
        figure = measured(cell)
        if figure is not None:
            points.append(Point(cell.row, cell.column, "holed" if cell.gpu else "filled", figure))
        of_paper = printed(cell)
        if of_paper is not None and not cell.gpu:
            points.append(Point(cell.row, cell.column, "hollow", of_paper))
    return points


def write_pictures(docs: Path, filled: Filled, earlier: Filled) -> list[str]:
    """Draw all pictures into ``docs/pictures``, and return the lines of the page that show them.

    Parameters
    ----------
    docs : Path
        Has ``results/<table>-curves.csv``.
    filled, earlier : mapping of str to sequence of TableCell
        The cells of each table, by its name; and as they were measured with other pixels.
    """
    curves = {name: Curves(path_of(docs, name)) for name in ACCURACY_TABLES}
    pictures = [
        *(accuracy_picture(TABLES[name], filled[name], earlier[name]) for name in ACCURACY_TABLES),
        curves_picture(filled, curves),
        auc_picture(filled),
        seconds_picture(TABLES["timing"], filled["timing"]),
    ]
    lines = []
    for picture in pictures:
        lines += write_picture(docs, picture)
    return lines


def _count_missing(cells: Sequence[TableCell]) -> str:
    """Return how many cells of a table nobody measured."""
    places = {(cell.row.key, cell.column.key) for cell in cells}
    lacking = len(places) - len(one_each(cells))
    return f"Missing here: {lacking} of {len(places)} cells."


# -- accuracy


def accuracy_picture(
    table: PaperTable, cells: Sequence[TableCell], earlier: Sequence[TableCell] = ()
) -> Picture:
    """Return a table of accuracies as a picture: a panel for each column.

    Parameters
    ----------
    table : PaperTable
        The table.
    cells : sequence of TableCell
        Its cells, those without a measurement included.
    earlier : sequence of TableCell
        The same cells measured with other pixels; they are no points.
    """
    data, _, attacks = table.title.partition(": ")
    title = f"{data}, {attacks}: test accuracy in %, mean of the last ten rounds"
    points = points_of(cells, lambda cell: cell.mean(LAST_TEN, 100), lambda cell: cell.paper)
    finding = accuracy_finding(cells)

    def draw(sheet: Sheet) -> str:
        return _draw_accuracies(table, points, sheet, title, finding)

    caption = _count_missing(cells)
    here = {(cell.row.key, cell.column.key) for cell in one_each(cells)}
    before = {(cell.row.key, cell.column.key) for cell in one_each(earlier)}
    count = len(before - here)
    if count:
        caption += f" Of these, {count} were measured with other pixels: see the table."

    return Picture(f"{table.name}-accuracy", title, finding, caption, draw)


def _draw_accuracies(
    table: PaperTable, points: Sequence[Point], sheet: Sheet, title: str, finding: str
) -> str:
    entries: list[Entry] = [(LOOKS[row.key], "filled", row.title) for row in table.rows]
    across = len(table.columns)
    height = 300.0
    if sheet.is_narrow:
        across = 3
        height = 150.0

    def body(drawing: Drawing, top: float) -> float:
        size = sheet.size
        grid = panel_grid(
            sheet,
            len(table.columns),
            across,
            start=top,
            height=height,
            above=3.2 * size,
            below=0.4 * size,
            left=2.4 * size,
        )
        ends = [point.figure.mean + side for point in points for side in _reach(point.figure)]
        low, high = limits(ends)
        for index, (column, box) in enumerate(zip(table.columns, grid.boxes, strict=True)):
            scale = Scale(low, high, box.bottom, box.top)
            horizontal_lines(drawing, box, scale, most=6, labelled=grid.is_first(index))
            _write_column(drawing, box, column)
            of_column = [point for point in points if point.column.key == column.key]
            _draw_points(drawing, box, scale, table.rows, of_column)
        return grid.bottom

    return compose(sheet, title, finding, entries, _MARKS, body)


def _reach(figure: MeanStd) -> tuple[float, float]:
    """Return how far a figure's bar goes down and up."""
    deviation = figure.std or 0.0
    return -deviation, deviation


def _write_column(drawing: Drawing, box: Box, column: Variant) -> None:
    """Write a column's title above its panel: words, and below them numbers."""
    words = [word for word in column.title.split() if word[0].isalpha() and word != "std"]
    numbers = [word for word in column.title.split() if not word[0].isalpha()]
    middle = box.left + box.width / 2
    size = drawing.size
    drawing.text((middle, box.top - 1.75 * size), " ".join(words), anchor="middle")
    drawing.text((middle, box.top - 0.5 * size), " ".join(numbers), anchor="middle")


def _draw_points(
    drawing: Drawing, box: Box, scale: Scale, rows: Sequence[Variant], points: Iterable[Point]
) -> None:
    """Draw a panel's points: a method after the other, each measured first and then the paper."""
    slot = box.width / len(rows)
    keys = [row.key for row in rows]
    shifts = {"filled": -0.22 * slot, "holed": 0.0, "hollow": 0.22 * slot}
    for point in points:
        x = box.left + (keys.index(point.row.key) + 0.5) * slot + shifts[point.kind]
        look = LOOKS[point.row.key]
        down, up = _reach(point.figure)
        if up:
            ends = [(x, scale(point.figure.mean + side)) for side in (down, up)]
            drawing.line(ends[0], ends[1], f"bar {look.colour}")
        drawing.point((x, scale(point.figure.mean)), look, point.kind, _note(point, ".2f"))


def _note(point: Point, form: str) -> str:
    where = {"filled": "here", "holed": "here, on a GPU", "hollow": "paper"}[point.kind]
    return f"{point.row.title}, {point.column.title}, {where}: {point.figure.shown(form)}"


# -- accuracy over rounds


class CurvePanel(NamedTuple):
    """A column whose curves are drawn: its title, and what is there by method."""

    title: str
    rows: Sequence[Variant]
    curves: Mapping[str, Curve]
    printed: Mapping[str, MeanStd]


def heaviest(table: PaperTable, attack: str) -> Variant:
    """Return the column of an attack with most malicious clients, and the worst they do."""
    columns = [column for column in table.columns if column.settings.get("attack") == attack]

    def weight(column: Variant) -> tuple[float, float, float]:
        settings = column.settings
        amounts = (settings.get("poison-ratio-max", 0.0), settings.get("gradient-noise.std", 0.0))
        return float(settings["malicious-fraction"]), float(amounts[0]), float(amounts[1])

    return max(columns, key=weight)


def curve_panels(filled: Filled, curves: Mapping[str, Curves]) -> list[CurvePanel]:
    """Return the four heaviest columns: label noise and gradient noise on both data sets."""
    panels = []
    for data, (poisoned, noisy) in _DATA.items():
        for name, attack in ((poisoned, "label-noise"), (noisy, "gradient-noise")):
            column = heaviest(TABLES[name], attack)
            rows = [row for row in TABLES[name].rows if row.key in DRAWN_CURVES]
            drawn: dict[str, Curve] = {}
            printed = {}
            for cell in sorted(filled[name], key=lambda cell: cell.gpu):  # A CPU's come first.
                if cell.column.key != column.key or cell.row.key not in DRAWN_CURVES:
                    continue
                curve = curves[name].mean(cell)
                if curve:
                    # An untrained model is left out: it would take most of the panel's height.
                    drawn.setdefault(cell.row.key, [point for point in curve if point[0]])
                if cell.paper is not None:
                    printed[cell.row.key] = cell.paper
            panels.append(CurvePanel(f"{data}, {column.title}", rows, drawn, printed))
    return panels


def curves_picture(filled: Filled, curves: Mapping[str, Curves]) -> Picture:
    """Return accuracy over rounds, FedAvg beside FedIF beside AFedSV."""
    title = "Test accuracy in % over rounds under the heaviest label noise and gradient noise"
    panels = curve_panels(filled, curves)
    last = {}
    for panel in panels:
        titles = {row.key: row.title for row in panel.rows}
        last[panel.title] = {titles[key]: 100 * c[-1][1] for key, c in panel.curves.items()}
    finding = curves_finding(last)

    def draw(sheet: Sheet) -> str:
        return _draw_curves(panels, sheet, title, finding)

    return Picture("curves", title, finding, _missing_curves(panels), draw)


def _missing_curves(panels: Sequence[CurvePanel]) -> str:
    """Return how many curves are not there, and which."""
    count = 0
    by_panel = []
    for panel in panels:
        absent = [row.title for row in panel.rows if row.key not in panel.curves]
        count += len(absent)
        if absent:
            by_panel.append(f"{panel.title}: {', '.join(absent)}")
    words = f"Missing: {count} of {sum(len(panel.rows) for panel in panels)} curves"
    if by_panel:
        words += f". {'; '.join(by_panel)}"
    return f"{words}."


def _draw_curves(panels: Sequence[CurvePanel], sheet: Sheet, title: str, finding: str) -> str:
    entries: list[Entry] = [(LOOKS[row.key], "filled", row.title) for row in panels[0].rows]
    marks = (
        "A point at every 20th round, a mean over seeds. Hollow, at the right: the paper's figure."
    )
    across, height = (1, 150.0) if sheet.is_narrow else (len(panels), 300.0)

    def body(drawing: Drawing, top: float) -> float:
        size = sheet.size
        grid = panel_grid(
            sheet,
            len(panels),
            across,
            start=top,
            height=height,
            above=2.0 * size if sheet.is_narrow else 3.2 * size,
            below=2.7 * size,
            left=0.0,
            each_left=2.4 * size,
        )
        for panel, box in zip(panels, grid.boxes, strict=True):
            _draw_curve_panel(drawing, box, panel, across)
        return grid.bottom

    return compose(sheet, title, finding, entries, marks, body)


def _draw_curve_panel(drawing: Drawing, box: Box, panel: CurvePanel, across: int) -> None:
    size = drawing.size
    values = [100 * accuracy for curve in panel.curves.values() for _, accuracy in curve]
    values += [figure.mean for figure in panel.printed.values()]
    low, high = limits(values)
    up = Scale(low, high, box.bottom, box.top)
    # The paper's figures have room at the right of the last round.
    along = Scale(0.0, _LAST, box.left, box.right - 1.6 * size)
    horizontal_lines(drawing, box, up, most=6)
    vertical_lines(drawing, Box(box.left, box.top, along.end - box.left, box.height), along, most=5)
    drawing.text(
        (box.left + box.width / 2, box.bottom + 2.3 * size),
        "round",
        anchor="middle",
        classes="quiet",
    )
    data, _, column = panel.title.partition(", ")
    middle = box.left + box.width / 2
    if across == 1:
        drawing.text((middle, box.top - 0.6 * size), panel.title, anchor="middle")
    else:
        drawing.text((middle, box.top - 1.75 * size), data, anchor="middle")
        drawing.text((middle, box.top - 0.5 * size), column, anchor="middle")
    for row in panel.rows:
        look = LOOKS[row.key]
        curve = panel.curves.get(row.key, ())
        drawing.curve([(along(n), up(100 * accuracy)) for n, accuracy in curve], look.colour)
        for number, accuracy in curve:
            if number % 20 == 0 or number == curve[-1][0]:
                note = f"{row.title}, round {number}: {100 * accuracy:.2f}"
                drawing.point((along(number), up(100 * accuracy)), look, "filled", note)
        if row.key in panel.printed:
            figure = panel.printed[row.key]
            place = (box.right - 0.5 * size, up(figure.mean))
            drawing.point(place, look, "hollow", f"{row.title}, paper: {figure.shown('.2f')}")
    if not panel.curves:
        words = "no curve here yet"
        middle_of_it = (middle, box.top + box.height / 2)
        drawing.text(middle_of_it, words, anchor="middle", classes="quiet")


# -- AUC of scores, and seconds: a line for each name


def auc_picture(filled: Filled) -> Picture:
    """Return the AUC of scores by column."""
    title = "AUC of scores: low scores as a sign of who is malicious (1: perfect, 0.5: chance)"
    cells_by_data = {}
    for data, names in _DATA.items():
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
            dots.append(Dot(look, point.kind, point.figure.mean, _note(point, ".3f"), up=up))
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
            dots = [Dot(LOOKS[row.key], p.kind, p.figure.mean, _note(p, ".4f")) for p in shown]
            lines.append(Line(row.title, dots))
        panels.append(DotPanel(title_of_data(column.key), "", lines))
    seconds = [point.figure.mean for point in points]
    plot = DotPlot(panels, min(seconds) / 2, max(seconds) * 2, is_log=True)

    def draw(sheet: Sheet) -> str:
        return plot.draw(sheet, title, finding, [], _MARKS.partition(" Bars")[0])

    return Picture("seconds", title, finding, _count_missing(cells), draw)
