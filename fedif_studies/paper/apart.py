"""Which cells are far from the paper's figures, from the rows alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from typing import NamedTuple

from fedif_studies.lab.table import Column, MeanStd, shown_mean, table_of
from fedif_studies.paper.cells import TableCell
from fedif_studies.paper.findings import one_each
from fedif_studies.paper.points import DATA, Filled
from fedif_studies.paper.tables import TABLES, PaperTable

FAR = 3.0  # Points.
_ACCURACIES = frozenset(chain.from_iterable(DATA.values()))


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
    compared = list(_compared(measured))
    far = [figure for figure in compared if abs(figure.difference()) > FAR]
    table = table_of("", _COLUMNS, far, num_labels=4, is_grouped=True)
    summary = f"{len(far)} of {len(compared)} cells are more than {FAR:g} points from the paper."
    return [*table.to_markdown(), "", summary]


class _Compared(NamedTuple):
    """A measured cell that the paper prints a figure of, and how its pixels were scaled."""

    pixels: str
    table: PaperTable
    cell: TableCell
    paper: MeanStd

    def measured(self, name: str) -> MeanStd | None:
        """Return one of its accuracies, in percent."""
        return self.cell.mean(f"{self.table.split}-{name}", 100)

    def difference(self) -> float:
        """Return by how many points its last ten rounds are above the paper; 0: it has none."""
        last_ten = self.measured("last-ten")
        if last_ten is None:
            return 0.0
        return last_ten.mean - self.paper.mean


def _compared(measured: Iterable[Pixels]) -> Iterator[_Compared]:
    """Yield each figure of the paper's tables once that is measured."""
    seen: set[frozenset[tuple[str, object]]] = set()
    tables = [table for table in TABLES.values() if not table.is_timed]
    for pixels, table in product(measured, tables):
        for cell in one_each(pixels.filled[table.name]):
            identity = _identity(table, cell)
            if cell.paper is not None and identity not in seen:
                seen.add(identity)
                yield _Compared(pixels.words, table, cell, cell.paper)


def _identity(table: PaperTable, cell: TableCell) -> frozenset[tuple[str, object]]:
    """Return what a cell is a figure of: with the same settings, several tables have the same."""
    settings = table.settings(cell.row, cell.column)
    return frozenset({**settings, "split": table.split}.items())


def _short_title(table: PaperTable) -> str:
    """Return a table's data set, and what is measured in it."""
    data, _, measured = table.title.partition(": ")
    if table.name in _ACCURACIES:
        measured = "accuracy"
    return f"{data}, {measured}"


_COLUMNS: Sequence[Column[_Compared]] = (
    ("pixels", lambda figure: figure.pixels),
    ("table", lambda figure: _short_title(figure.table)),
    ("what clients do", lambda figure: figure.cell.column.title),
    ("row", lambda figure: figure.cell.title),
    ("last ten", lambda figure: shown_mean(figure.measured("last-ten"), ".1f")),
    ("last", lambda figure: shown_mean(figure.measured("last"), ".1f")),
    ("best", lambda figure: shown_mean(figure.measured("best"), ".1f")),
    ("paper", lambda figure: shown_mean(figure.paper, ".1f")),
    ("last ten - paper", lambda figure: f"{figure.difference():+.1f}"),
)
