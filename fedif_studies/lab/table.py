"""Means over seeds, and a table as files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fedif_flower.storage import write_atomically
from fedif_flower.tables import ResultTable
from fedif_studies.lab.measurements import write_csv

# The fields of an Accuracy, and what a table calls them.
FIGURES: Mapping[str, str] = MappingProxyType(
    {"last": "last round", "last_ten": "mean of last ten", "best": "best round"}
)


@dataclass(frozen=True)
class MeanStd:
    """A mean over seeds, with its sample standard deviation if there are two or more."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanStd:
        """Return mean and standard deviation of one or more values."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def shown(self, form: str) -> str:
        """Return both as text, each in a format such as ``".2f"``."""
        text = format(self.mean, form)
        return text if self.std is None else f"{text} ± {format(self.std, form)}"


def write_table(
    table: ResultTable, folder: Path, before: Sequence[str] = (), after: Sequence[str] = ()
) -> Path:
    """Write ``table.md``, with lines before and after the table, and ``table.csv``."""
    path = folder / "table.md"
    text = [f"# {table.title}", "", *before, *table.to_markdown(), "", *after]
    write_atomically(path, "\n".join(text).rstrip() + "\n")
    write_csv(folder / "table.csv", table.to_rows())
    return path
