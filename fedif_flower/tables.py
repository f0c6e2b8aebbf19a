"""Tables for the terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.measure import Measurement as Width
from rich.table import Table
from rich.text import Text

from fedif_flower.foreign import visible


@dataclass(frozen=True)
class ResultTable:
    """A table whose cells are text; ``**bold**`` cells stand out.

    Attributes
    ----------
    title : str
        What the table is about.
    heading : sequence of str
        The columns' names.
    lines : sequence of sequence of str
        The rows, each as long as the heading.
    num_labels : int
        How many of the first columns hold names; the others hold numbers, which are aligned right.
    grouped : bool
        Whether rows with the same first cell are a group, in which that cell is shown once.
    """

    title: str
    heading: Sequence[str]
    lines: Sequence[Sequence[str]]
    num_labels: int
    grouped: bool = False

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, object]]) -> ResultTable:
        """Return a table of one or more records with the same keys; ``None`` is an empty cell."""
        heading = [name.replace("_", " ") for name in records[0]]
        lines = [[_cell(value) for value in record.values()] for record in records]
        return cls("", heading, lines, num_labels=len(heading))

    def to_markdown(self) -> list[str]:
        """Return the lines of a Markdown table."""
        num_numbers = len(self.heading) - self.num_labels
        bars = ["---"] * self.num_labels + ["---:"] * num_numbers
        return [_markdown_line(row) for row in (self.heading, bars, *self._shown_lines())]

    def print(self, console: Console) -> None:
        """Print the table in its full width, however narrow the terminal or pipe is."""
        shown = Table(title=Text(visible(self.title), "table.title"), title_justify="left")
        for name in self.heading[: self.num_labels]:
            shown.add_column(Text(visible(name)), justify="left")
        for name in self.heading[self.num_labels :]:
            shown.add_column(Text(visible(name)), justify="right")
        for index, line in enumerate(self._shown_lines()):
            if self.grouped and index and line[0]:
                shown.add_section()
            shown.add_row(*[_styled(cell) for cell in line])
        wide = console.options.update(max_width=10_000)
        shown.width = Width.get(console, wide, shown).maximum
        console.print(shown, crop=False, soft_wrap=True)

    def _shown_lines(self) -> list[Sequence[str]]:
        """Return the rows, with repeated first cells left empty if rows are grouped."""
        lines: list[Sequence[str]] = []
        previous = None
        for line in self.lines:
            repeats = self.grouped and line[0] == previous
            lines.append(["", *line[1:]] if repeats else line)
            previous = line[0]
        return lines


def print_line(console: Console, line: str, style: str = "") -> None:
    """Print a line without wrapping it; brackets in it, as of a path or a name, are no markup."""
    console.print(Text(visible(line), style), soft_wrap=True)


def _cell(value: object) -> str:
    """Return a value as the text of a cell; floats are rounded to integers."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}"
    return str(value)


def _markdown_line(row: Sequence[str]) -> str:
    """Return a row as a line of a Markdown table."""
    cells = [cell.replace("|", r"\|") for cell in row]
    return f"| {' | '.join(cells)} |"


def _styled(cell: str) -> Text:
    """Return a cell for the terminal, bold if its text is marked so.

    Other markup and escape sequences have no effect, since the text may be somebody else's.
    """
    style = "bold" if cell.startswith("**") else ""
    return Text(visible(plain(cell)), style)


def plain(text: str) -> str:
    """Return a cell's text without Markdown's marks of bold text."""
    return text.replace("**", "")


def shown_number(value: float | None, form: str = ".4f") -> str:
    """Return a figure as text; a dash for ``None``."""
    if value is None:
        return "-"
    return format(value, form)


def decimals_for(values: Iterable[float]) -> int:
    """Return the number of decimals, 2 to 9, with which the largest value has four digits."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0:
        return 2
    decimals = 3 - math.floor(math.log10(largest))
    return min(max(decimals, 2), 9)
