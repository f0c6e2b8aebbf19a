"""Means over seeds, and tables that are printed and written as a Markdown page."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console

from fedif_flower.storage import make_folder, write_atomically
from fedif_flower.tables import ResultTable, print_line

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Column = tuple[str, Callable[[T], str]]
"""A column of a table: its heading, and a function that returns an item's text in it."""


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return items grouped by ``key``; the groups, and the items in each, keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def column_mean(rows: Iterable[Mapping[str, Any]], column: str) -> float:
    """Return the mean of the numbers that rows have in a column."""
    return statistics.mean(float(row[column]) for row in rows)


@dataclass(frozen=True)
class MeanStd:
    """A mean over seeds and its sample standard deviation, ``None`` where there is one seed."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanStd:
        """Return the mean and the standard deviation of one or more values.

        The deviation of values that are not all finite is NaN.
        """
        std: float | None = None
        if len(values) > 1 and all(map(math.isfinite, values)):
            std = statistics.stdev(values)
        elif len(values) > 1:
            std = math.nan  # statistics.stdev raises an error for NaN and infinity.
        return cls(statistics.fmean(values), std)

    def shown(self, form: str) -> str:
        """Return ``"mean±std"``, each in a format such as ``".2f"``, or the mean alone."""
        mean = format(self.mean, form)
        if self.std is None:
            return mean
        return f"{mean}±{format(self.std, form)}"


def shown_mean(mean: MeanStd | None, form: str) -> str:
    """Return a mean as text; a dash where there is none."""
    if mean is None:
        return "-"
    return mean.shown(form)


def table_of(
    title: str,
    columns: Sequence[Column[T]],
    items: Iterable[T],
    *,
    num_labels: int,
    is_grouped: bool = False,
) -> ResultTable:
    """Return a table with a line for each item.

    Parameters
    ----------
    title : str
        The table's title.
    columns : sequence of tuple
        The heading of each column, and a function that returns an item's text in it.
    items : iterable
        The items, one for each line.
    num_labels : int
        How many columns name a line. They come first; the others have figures.
    is_grouped : bool
        Whether a first column that repeats is shown once for all of its lines.
    """
    heading = [name for name, _ in columns]
    lines = []
    for item in items:
        line = [show(item) for _, show in columns]
        lines.append(line)
    return ResultTable(title, heading, lines, num_labels=num_labels, grouped=is_grouped)


def pivot(
    title: str,
    names: Sequence[str],
    values: Iterable[tuple[Sequence[str], str, T]],
    shown: Callable[[list[T]], str],
) -> ResultTable:
    """Return a table of values by line and column, both in the order in which they first come.

    Parameters
    ----------
    title : str
        The table's title.
    names : sequence of str
        The headings of the first columns, whose entries name a line.
    values : iterable of tuple
        The names of a line, the heading of a column, and a value. Several values may have the same
        line and column.
    shown : callable
        Returns the text for all values of a line and column. Without a value, the text is a dash.
    """
    by_line: dict[tuple[str, ...], dict[str, list[T]]] = {}
    for line, column, value in values:
        by_column = by_line.setdefault(tuple(line), {})
        by_column.setdefault(column, []).append(value)
    columns = list(dict.fromkeys(itertools.chain.from_iterable(by_line.values())))
    lines = []
    for line_names, by_column in by_line.items():
        line = list(line_names)
        for name in columns:
            if name in by_column:
                line.append(shown(by_column[name]))
            else:
                line.append("-")
        lines.append(line)
    return ResultTable(title, [*names, *columns], lines, num_labels=len(names))


def print_markdown(table: ResultTable) -> None:
    """Print a table as Markdown."""
    typer.echo("\n".join(table.to_markdown()))


def write_table(
    table: ResultTable,
    folder: Path,
    console: Console,
    remarks: Sequence[str],
    pictures: Sequence[Path] = (),
    more: Sequence[ResultTable] = (),
) -> None:
    """Print a table and remarks on it; write both, and links to its pictures, into ``table.md``.

    The tables of ``more`` follow, each under its title.
    """
    make_folder(folder)
    page = folder / "table.md"
    shown = [f"![{picture.stem}]({picture.name})" for picture in pictures]
    paragraphs = [f"# {table.title}", "\n".join(table.to_markdown()), *remarks, *shown]
    for other in more:
        paragraphs += [f"## {other.title}", "\n".join(other.to_markdown())]
    write_atomically(page, "\n\n".join(paragraphs) + "\n")
    for printed in (table, *more):
        printed.print(console)
    for line in (*remarks, f"Report: {page.absolute()}"):
        print_line(console, line)
