"""Reports on grids, rebuilt from results alone: Markdown, CSV, plots, and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedif_flower.storage import make_folder
from fedif_studies.lab.curves import plot_curves
from fedif_studies.lab.measurements import Measurement, to_row, write_csv
from fedif_studies.lab.report import report_sweeps
from fedif_studies.lab.table import write_table
from fedif_studies.paper.compare import TableCell, fill_table
from fedif_studies.paper.markdown import notes, result_table
from fedif_studies.paper.tables import TABLES, Settings, Table


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
    report_sweeps([m for m in measurements if id(m) not in used], output_dir, console)


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
    make_folder(folder)
    shown = result_table(table, cells)
    pictures = plot_columns(table, cells, folder)
    after = [line for said in notes(table, cells) for line in (said, "")]
    path = write_table(shown, folder, after=[*after, *(f"![{p.stem}]({p.name})" for p in pictures)])
    write_csv(folder / "results.csv", result_rows(table, cells))
    shown.print(console)
    for said in notes(table, cells):
        console.print(said, highlight=False)
    console.print(f"Report: {path.absolute()}", soft_wrap=True, highlight=False)
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


def _rounds(table: Table, measurements: Sequence[Measurement]) -> list[int]:
    return sorted({m.rounds for m in measurements} | {table.rounds}, reverse=True)
