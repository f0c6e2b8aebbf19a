"""Reports on grids, rebuilt from results alone: Markdown, CSV, plots, and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from fedif_flower.run.recorder import write_atomically
from fedif_flower.sweeps.curves import plot_curves
from fedif_flower.sweeps.measurements import Measurement, to_row, write_csv
from fedif_flower.sweeps.report import report_sweep
from paper.compare import TableCell, fill_table
from paper.markdown import Lines, notes, plain, table_lines, to_markdown
from paper.tables import TABLES, Settings, Table


def report_all(
    measurements: Sequence[Measurement], defaults: Settings, output_dir: Path, console: Console
) -> None:
    """Report on every table of the paper that has a result, and on the rest as sweeps.

    Parameters
    ----------
    measurements : sequence of Measurement
        Complete runs of any kind.
    defaults : Mapping[str, Scalar]
        A complete run config, for everything that a table leaves open.
    output_dir : Path
        Reports go to ``<output>/<table or sweep>/``.
    console : Console
        Where they are shown.
    """
    used: set[int] = set()
    for table in TABLES.values():
        for rounds in _rounds(table, measurements):
            cells = fill_table(table, measurements, defaults, rounds)
            found = {id(m) for cell in cells for m in cell.measurements}
            if found:
                report_table(table, cells, output_dir, console, rounds)
            used |= found
    rest: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if id(measurement) not in used:
            folder = measurement.run_dir.parent.name if measurement.run_dir else "runs"
            rest.setdefault(folder, []).append(measurement)
    for name, found_there in rest.items():
        report_sweep(name, found_there, output_dir, console)


def report_table(
    table: Table,
    cells: Sequence[TableCell],
    output_dir: Path,
    console: Console,
    rounds: int,
) -> Path:
    """Write a table's Markdown, CSV files and plots, print it, and return their directory."""
    name = table.name if rounds == table.rounds else f"{table.name}-{rounds}-rounds"
    folder = output_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    heading, lines = table_lines(table, cells)
    text = [f"# {table.title}", "", *to_markdown(heading, lines), ""]
    for said in notes(table, cells):
        text += [said, ""]
    pictures = plot_columns(table, cells, folder)
    text += [f"![{path.stem}]({path.name})" for path in pictures]
    write_atomically(folder / "table.md", lambda p: p.write_text("\n".join(text).rstrip() + "\n"))
    write_csv(folder / "table.csv", _plain_rows(heading, lines))
    write_csv(folder / "results.csv", result_rows(table, cells))
    print_lines(table.title, heading, lines, console)
    for said in notes(table, cells):
        console.print(said, highlight=False)
    console.print(f"Report: {(folder / 'table.md').absolute()}", soft_wrap=True, highlight=False)
    return folder


def result_rows(table: Table, cells: Sequence[TableCell]) -> list[dict[str, str]]:
    """Return one row per cell and seed, with where it belongs and everything measured."""
    return [
        {"table": table.name, "row": cell.row.key, "column": cell.column.key, **to_row(m)}
        for cell in cells
        for m in cell.measurements
    ]


def plot_columns(table: Table, cells: Sequence[TableCell], folder: Path) -> list[Path]:
    """Draw accuracy over rounds, a picture per column, and return the pictures."""
    if table.figure == "seconds":
        return []
    split = table.figure.removesuffix("-accuracy")
    drawn = []
    for column in table.columns:
        own = [cell for cell in cells if cell.column.key == column.key]
        path = folder / f"{column.key}.png"
        series = {cell.row.title: cell.measurements for cell in own}
        paper = {cell.row.title: cell.paper[0] for cell in own if cell.paper is not None}
        title = f"{table.title.partition(':')[0]}, {column.title}"
        if plot_curves(series, path, title, split=split, paper=paper):
            drawn.append(path)
    return drawn


def print_lines(title: str, heading: Sequence[str], lines: Lines, console: Console) -> None:
    """Print a table on the terminal."""
    shown = RichTable(title=title)
    for index, name in enumerate(heading):
        shown.add_column(name, justify="left" if index < 2 else "right")
    previous = ""
    for line in lines:
        marked = [f"[bold]{plain(c)}[/]" if c.startswith("**") else c for c in line[1:]]
        if previous and line[0] != previous:
            shown.add_section()
        shown.add_row(line[0] if line[0] != previous else "", *marked)
        previous = line[0]
    console.print(shown)


def _plain_rows(heading: Sequence[str], lines: Lines) -> list[dict[str, str]]:
    # Two headings are called "paper" in the table of seconds.
    names = [
        f"{heading[i - 1]}, paper" if name == "paper" and heading.count(name) > 1 else name
        for i, name in enumerate(heading)
    ]
    return [dict(zip(names, map(plain, line), strict=True)) for line in lines]


def _rounds(table: Table, measurements: Sequence[Measurement]) -> list[int]:
    return sorted({m.rounds for m in measurements} | {table.rounds}, reverse=True)
