"""The table of the cells whose measurements are far from the paper's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from typing import NamedTuple

from fedif_studies.lab.table import Column, MeanStd, shown_mean, table_of
from fedif_studies.paper.cells import TableCell
from fedif_studies.paper.findings import one_each
from fedif_studies.paper.points import DATA, Filled
from fedif_studies.paper.tables import TABLES, PaperTable

FAR = 3.0  # Percentage points from the paper's figure: a cell beyond that is in the table.
_ACCURACIES = frozenset(chain.from_iterable(DATA.values()))


class Pixels(NamedTuple):
    """The cells of all tables, measured with pixels scaled in one way, which ``words`` names."""

    words: str
    filled: Filled


def apart_lines(measured: Sequence[Pixels]) -> list[str]:
    """Return the table of the cells that are far from the paper, in Markdown.

    Parameters
    ----------
    measured : sequence of Pixels
        The cells by how pixels were scaled. If a cell was measured with several scalings, only the
        first counts.
    """
    compared = list(_compared(measured))
    far = [figure for figure in compared if abs(figure.difference()) > FAR]
    table = table_of("", _COLUMNS, far, num_labels=4, is_grouped=True)
    summary = f"{len(far)} of {len(compared)} cells are more than {FAR:g} points from the paper."
    return [*table.to_markdown(), "", summary]


class _Compared(NamedTuple):
    """A measured cell, the paper's figure for it, and how its pixels were scaled."""

    pixels: str
    table: PaperTable
    cell: TableCell
    paper: MeanStd

    def measured(self, name: str) -> MeanStd | None:
        """Return one of its accuracies, in percent."""
        return self.cell.mean(f"{self.table.split}-{name}", 100)

    def difference(self) -> float:
        """Return how many points its mean of the last ten rounds is above the paper's figure.

        A cell without that mean has 0.
        """
        last_ten = self.measured("last-ten")
        if last_ten is None:
            return 0.0
        return last_ten.mean - self.paper.mean


def _compared(measured: Iterable[Pixels]) -> Iterator[_Compared]:
    """Yield each measured cell that has a figure in the paper, once."""
    seen: set[frozenset[tuple[str, object]]] = set()
    tables = [table for table in TABLES.values() if not table.is_timed]
    for pixels, table in product(measured, tables):
        for cell in one_each(pixels.filled[table.name]):
            identity = _identity(table, cell)
            if cell.paper is not None and identity not in seen:
                seen.add(identity)
                yield _Compared(pixels.words, table, cell, cell.paper)


def _identity(table: PaperTable, cell: TableCell) -> frozenset[tuple[str, object]]:
    """Return a cell's settings and split. Cells of several tables with the same are one cell."""
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
