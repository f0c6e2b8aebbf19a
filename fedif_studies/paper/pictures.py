"""The pictures that open ``docs/results.md``, drawn from the rows alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.cells import TableCell, keys_of
from fedif_studies.paper.curve_picture import curves_picture
from fedif_studies.paper.curves import Curves, path_of
from fedif_studies.paper.dot_pictures import auc_picture, seconds_picture
from fedif_studies.paper.findings import LAST_TEN, accuracy_finding, one_each
from fedif_studies.paper.points import (
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
from fedif_studies.pictures.panels import (
    Box,
    Entry,
    Scale,
    Sheet,
    compose,
    draw_horizontal_lines,
    limits,
    panel_grid,
)
from fedif_studies.pictures.sheets import Picture, write_picture
from fedif_studies.pictures.svg import Drawing

ACCURACY_TABLES = ("cifar10", "fashion-mnist", "cifar10-gradient", "fashion-mnist-gradient")


def write_pictures(docs: Path, filled: Filled, earlier: Filled) -> list[str]:
    """Draw all pictures into ``docs/pictures``, and return the lines of the page that show them.

    Parameters
    ----------
    docs : Path
        The folder that has ``results/<table>-curves.csv``.
    filled : mapping of str to sequence of TableCell
        The cells of each table, by the table's name.
    earlier : mapping of str to sequence of TableCell
        The same cells with the measurements on pixels that were scaled in another way.
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
        The same cells with the measurements on pixels that were scaled in another way. They are
        not drawn; the caption says how many of the missing cells have such a measurement.
    """
    data, _, attacks = table.title.partition(": ")
    title = f"{data}, {attacks}: test accuracy in %, mean of the last ten rounds"
    points = points_of(cells, lambda cell: cell.mean(LAST_TEN, 100), lambda cell: cell.paper)
    finding = accuracy_finding(cells)

    def draw(sheet: Sheet) -> str:
        return _draw_accuracies(table, points, sheet, title, finding)

    caption = count_missing(cells) + _count_earlier(cells, earlier)
    return Picture(f"{table.name}-accuracy", title, finding, caption, draw)


def _count_earlier(cells: Sequence[TableCell], earlier: Sequence[TableCell]) -> str:
    """Return a sentence on missing cells that were measured with other pixels, if there are any."""
    count = len(keys_of(one_each(earlier)) - keys_of(one_each(cells)))
    if not count:
        return ""
    verb = "was" if count == 1 else "were"
    return f" Of these, {count} {verb} measured with other pixels: see the table."


def _draw_accuracies(
    table: PaperTable, points: Sequence[Point], sheet: Sheet, title: str, finding: str
) -> str:
    """Return the SVG text for a sheet: a panel for each column, all on one scale."""
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
        low, high = limits(_ends_of_bars(points))
        for index, (column, box) in enumerate(zip(table.columns, grid.boxes, strict=True)):
            scale = Scale(low, high, box.bottom, box.top)
            draw_horizontal_lines(drawing, box, scale, labelled=grid.is_first(index))
            _write_column(drawing, box, column)
            _draw_points(drawing, box, scale, table.rows, in_column(points, column))
        return grid.bottom

    return compose(sheet, title, finding, entries, MARKS, body)


def _reach(figure: MeanStd) -> tuple[float, float]:
    """Return how far a figure's bar goes down (<= 0) and up (>= 0)."""
    deviation = figure.std or 0.0
    return -deviation, deviation


def _ends_of_bars(points: Iterable[Point]) -> list[float]:
    """Return the lower and the upper end of every point's bar."""
    ends = []
    for point in points:
        down, up = _reach(point.figure)
        ends.append(point.figure.mean + down)
        ends.append(point.figure.mean + up)
    return ends


def _write_column(drawing: Drawing, box: Box, column: Variant) -> None:
    """Write a column's title above its panel: the attack, and below it the attack's strength."""
    words = column.title.split()
    attack = list(itertools.takewhile(lambda word: word[0].isalpha(), words))
    strength = words[len(attack) :]
    middle = box.left + box.width / 2
    size = drawing.size
    drawing.text((middle, box.top - 1.75 * size), " ".join(attack), anchor="middle")
    drawing.text((middle, box.top - 0.5 * size), " ".join(strength), anchor="middle")


def _draw_points(
    drawing: Drawing, box: Box, scale: Scale, rows: Sequence[Variant], points: Iterable[Point]
) -> None:
    """Draw a panel's points, method by method: CPU at the left, GPU in the middle, paper right."""
    slot = box.width / len(rows)
    keys = [row.key for row in rows]
    shifts = {"filled": -0.22 * slot, "holed": 0.0, "hollow": 0.22 * slot}
    for point in points:
        x = box.left + (keys.index(point.row.key) + 0.5) * slot + shifts[point.kind]
        look = LOOKS[point.row.key]
        down, up = _reach(point.figure)
        if up:
            foot = (x, scale(point.figure.mean + down))
            head = (x, scale(point.figure.mean + up))
            drawing.line(foot, head, f"bar {look.colour}")
        drawing.point((x, scale(point.figure.mean)), look, point.kind, note_of(point, ".2f"))
