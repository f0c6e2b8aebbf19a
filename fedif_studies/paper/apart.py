"""Which cells are far from the paper's figures, from the rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from fedif_flower.tables import ResultTable
from fedif_studies.lab.table import MeanStd, shown_mean
from fedif_studies.paper.cells import TableCell
from fedif_studies.paper.findings import one_each
from fedif_studies.paper.points import DATA, Filled
from fedif_studies.paper.tables import TABLES, PaperTable

FAR = 3.0  # Points.
_ACCURACIES = frozenset(chain.from_iterable(DATA.values()))
_FIGURES = ("last-ten", "last", "best")


class Pixels(NamedTuple):
    """Cells as they were measured with pixels that were scaled in one way."""

    words: str
    filled: Filled


def apart_lines(measured: Sequence[Pixels]) -> list[str]:
    """Return the table of the cells that are far from the paper, in Markdown.

    Parameters
    ----------
    measured : sequence of Pixels
        A cell that was measured in several of these ways counts in the first alone.
    """
    lines = []
    seen: set[frozenset[tuple[str, object]]] = set()
    count = 0
    for pixels in measured:
        for table in TABLES.values():
            if table.is_timed:
                continue
            for cell in one_each(pixels.filled[table.name]):
                figure = _figure(table, cell)
                if figure in seen or cell.paper is None:
                    continue
                seen.add(figure)
                count += 1
                line = _line(table, cell, cell.paper)
                if line is not None:
                    lines.append([pixels.words, *_place(table, cell), *line])
    heading = ["pixels", "table", "what clients do", "row", "last ten", "last", "best", "paper"]
    heading.append("last ten - paper")
    table_of_lines = ResultTable("", heading, lines, num_labels=4, grouped=True)
    summary = f"{len(lines)} of {count} cells are more than {FAR:g} points from the paper."
    return [*table_of_lines.to_markdown(), "", summary]


def _figure(table: PaperTable, cell: TableCell) -> frozenset[tuple[str, object]]:
    """Return what a cell is a figure of: with the same settings, several tables have the same."""
    settings = table.settings(cell.row, cell.column)
    return frozenset({**settings, "split": table.split}.items())


def _place(table: PaperTable, cell: TableCell) -> tuple[str, str, str]:
    """Return where a cell stands."""
    data, _, measured = table.title.partition(": ")
    if table.name in _ACCURACIES:
        measured = "accuracy"
    return f"{data}, {measured}", cell.column.title, cell.title


def _line(table: PaperTable, cell: TableCell, paper: MeanStd) -> list[str] | None:
    """Return a cell's figures as text; ``None``: it is not far from the paper."""
    figures = [cell.mean(f"{table.split}-{name}", 100) for name in _FIGURES]
    last_ten = figures[0]
    if last_ten is None:
        return None
    difference = last_ten.mean - paper.mean
    if abs(difference) <= FAR:
        return None
    shown = [shown_mean(figure, ".1f") for figure in (*figures, paper)]
    return [*shown, f"{difference:+.1f}"]
