"""The points in pictures of the paper's tables, and how they look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.cells import TableCell, keys_of
from fedif_studies.paper.findings import one_each
from fedif_studies.paper.tables import Variant
from fedif_studies.pictures.svg import Kind, Look

Filled = Mapping[str, Sequence[TableCell]]
"""The cells of each table, by its name."""

# By data set, its tables of poisoned examples and of noisy updates.
DATA = MappingProxyType(
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
MARKS = (
    "Filled: measured here; with a hole: on a GPU; hollow: the paper. Bars: deviation over seeds."
)


class Point(NamedTuple):
    """A point of a picture: its row and column, its kind and its figure.

    ``kind`` is ``"filled"`` if a CPU measured it here, ``"holed"`` if a GPU did, and ``"hollow"``
    if the paper prints it.
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
    """Return a point for each measured cell, and one for each cell that the paper prints.

    Parameters
    ----------
    cells : iterable of TableCell
        The cells.
    measured, printed : callable
        Take a cell and return its figure here and in the paper, ``None`` if there is none.
    """
    points = []
    for cell in cells:
        figure = measured(cell)
        if figure is not None:
            points.append(Point(cell.row, cell.column, "holed" if cell.gpu else "filled", figure))
        of_paper = printed(cell)
        if of_paper is not None and not cell.gpu:
            points.append(Point(cell.row, cell.column, "hollow", of_paper))
    return points


def in_column(points: Iterable[Point], column: Variant) -> list[Point]:
    """Return the points of a column, in their order."""
    return [point for point in points if point.column.key == column.key]


def note_of(point: Point, form: str) -> str:
    """Return the text that a picture shows while the pointer is over a point."""
    where = {"filled": "here", "holed": "here, on a GPU", "hollow": "paper"}[point.kind]
    return f"{point.row.title}, {point.column.title}, {where}: {point.figure.shown(form)}"


def count_missing(cells: Sequence[TableCell]) -> str:
    """Return a sentence on how many cells of a table are not measured."""
    count = len(keys_of(cells))
    return f"Missing here: {count - len(one_each(cells))} of {count} cells."
