"""Means over seeds, and a table as a page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedif_flower.storage import make_folder, write_atomically
from fedif_flower.tables import ResultTable


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
    table: ResultTable,
    folder: Path,
    console: Console,
    said: Sequence[str],
    pictures: Sequence[Path] = (),
) -> None:
    """Print a table and what is to be said of it; write both and its pictures, ``table.md``."""
    make_folder(folder)
    shown = [f"![{picture.stem}]({picture.name})" for picture in pictures]
    paragraphs = [f"# {table.title}", "\n".join(table.to_markdown()), *said, *shown]
    write_atomically(folder / "table.md", "\n\n".join(paragraphs) + "\n")
    table.print(console)
    for line in (*said, f"Report: {(folder / 'table.md').absolute()}"):
        console.print(line, highlight=False, soft_wrap=True)
