"""What tests of the pages share: the cells of a table, and figures of rows as pages show them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence

from tests.test_docs_figures import Row
from tests.test_docs_names import DOCS


def lines_below(page: str, words: str) -> list[list[str]]:
    """Return the cells of the first table below ``words``, without its two lines of titles."""
    below = (DOCS / page).read_text().partition(words)[2]
    table = re.search(r"(?:^\|.*\n)+", below, flags=re.M)
    assert table, words
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def mean_of(rows: Iterable[Row], column: str, unit: float = 1) -> float:
    return unit * statistics.mean(float(row[column]) for row in rows)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.1f}±{statistics.stdev(values):.1f}"


def count(rows: Iterable[Row], column: str) -> int:
    return sum(int(row[column]) for row in rows)


def range_of(values: Iterable[float], digits: int = 1) -> str:
    in_order = sorted(values)
    return f"{in_order[0]:.{digits}f} to {in_order[-1]:.{digits}f}"
