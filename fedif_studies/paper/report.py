"""The paper's tables beside what was measured: reports, and ``docs/results.md``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from fedif_flower.run.rows import read_rows
from fedif_flower.storage import make_folder
from fedif_flower.tables import ResultTable
from fedif_studies.lab.curves import plot_curves
from fedif_studies.lab.measurements import Measurement, from_row, to_row, write_csv
from fedif_studies.lab.report import report_sweeps
from fedif_studies.lab.table import FIGURES, MeanStd, write_table
from fedif_studies.paper.cells import TableCell, best_rows, fill_table
from fedif_studies.paper.tables import TABLES, Settings, Table
from fedif_studies.rows import put_tables

_PLACE = ("table", "row", "column")


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
        paper = {cell.row.title: cell.paper.mean for cell in own if cell.paper is not None}
        title = f"{table.title.partition(':')[0]}, {column.title}"
        if plot_curves(series, path, title, split=split, paper=paper):
            drawn.append(path)
    return drawn


def _rounds(table: Table, measurements: Sequence[Measurement]) -> list[int]:
    return sorted({m.rounds for m in measurements} | {table.rounds}, reverse=True)


def accuracy_table(table: Table, cells: Sequence[TableCell]) -> ResultTable:
    """Return a table of accuracies in percent; the best are in bold."""
    split = table.figure.removesuffix("-accuracy")
    heading = ["column", "row", "seeds", *FIGURES.values()]
    heading += ["paper", "last ten - paper"]
    best = {
        f: best_rows(cells, partial(TableCell.accuracy, split=split, figure=f)) for f in FIGURES
    }
    best_paper = best_rows(cells, lambda cell: cell.paper)
    lines = []
    for cell in cells:
        key = (cell.row.key, cell.column.key)
        spreads = {figure: cell.accuracy(split, figure) for figure in FIGURES}
        line = [cell.column.title, cell.row.title, str(len(cell.measurements) or "-")]
        line += [_shown(spreads[figure], ".2f", key in best[figure]) for figure in FIGURES]
        line.append(_shown(cell.paper, ".2f", key in best_paper))
        line.append(_difference(spreads["last_ten"], cell.paper))
        lines.append(line)
    return ResultTable(table.title, heading, lines, num_labels=2, grouped=True)


def timing_table(table: Table, cells: Sequence[TableCell]) -> ResultTable:
    """Return the table of seconds, with the evaluations behind them."""
    heading = ["data set", "method", "training, s per client", "paper"]
    heading += ["aggregation, s per round", "paper", "evaluations per round"]
    lines = []
    for cell in cells:
        line = [cell.column.title, cell.row.title]
        for kind, figure in (
            ("training", "train-seconds-per-client"),
            ("aggregation", "aggregation-seconds-per-round"),
        ):
            paper = table.paper[cell.row.key][f"{cell.column.key}_{kind}"][0]
            line += [_shown(cell.figure(figure), ".4f"), f"{paper:.4f}"]
        lines.append([*line, _shown(cell.figure("evaluations-per-round"), ".0f")])
    return ResultTable(table.title, heading, lines, num_labels=2, grouped=True)


def result_table(table: Table, cells: Sequence[TableCell]) -> ResultTable:
    """Return any table of the paper as text."""
    return (timing_table if table.figure == "seconds" else accuracy_table)(table, cells)


def notes(table: Table, cells: Sequence[TableCell]) -> list[str]:
    """Return what must be said beside a table: its data, rounds and seeds, what is missing."""
    measured = [m for cell in cells for m in cell.measurements]
    said = []
    if measured:
        data = sorted({m.data for m in measured})
        rounds = sorted({m.rounds for m in measured})
        seeds = sorted({m.seed for m in measured})
        said.append(
            f"Measured on {', '.join(data)}; rounds: {_listed(rounds)}; seeds: {_listed(seeds)}."
        )
        if any("JPEG" in name for name in data):
            said.append(
                "CIFAR-10 here is its JPEG version (quality 75), not the original bitmaps that the "
                "paper used: accuracies can differ slightly for that reason alone."
            )
        machines = sorted({m.machine for m in measured})
        said.append(f"Machine: {'; '.join(machines)}.")
    missing = [cell for cell in cells if not cell.measurements]
    if missing:
        said.append(f"Missing, {len(missing)} of {len(cells)} cells: {_by_column(table, missing)}.")
    if table.figure == "validation-accuracy":
        said.append("Accuracies on the server's validation set, as in the paper.")
    return said


def _shown(spread: MeanStd | None, form: str, bold: bool = False) -> str:
    text = "-" if spread is None else spread.shown(form)
    return f"**{text}**" if bold else text


def _difference(measured: MeanStd | None, paper: MeanStd | None) -> str:
    return "-" if measured is None or paper is None else f"{measured.mean - paper.mean:+.2f}"


def _by_column(table: Table, cells: Sequence[TableCell]) -> str:
    rows: dict[str, list[str]] = {}
    for cell in cells:
        rows.setdefault(cell.column.key, []).append(cell.row.key)
    return ", ".join(
        f"{column} ({'all' if len(found) == len(table.rows) else ', '.join(found)})"
        for column, found in rows.items()
    )


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def update_docs(docs: Path, measurements: Sequence[Measurement], defaults: Settings) -> Path:
    """Add new results to the committed rows, and write the page's tables anew from these.

    Parameters
    ----------
    docs : Path
        Has ``results/<table>.csv``, one row per cell and seed, and ``results.md``, which has marks
        for the tables.
    measurements : sequence of Measurement
        New results; each replaces the row of its cell and seed.
    defaults : Mapping[str, Scalar]
        A complete run config, for everything that a table leaves open.

    Returns
    -------
    Path
        The page.
    """
    text: list[str] = []
    for table in TABLES.values():
        path = docs / "results" / f"{table.name}.csv"
        # Later ones win, so that a new result replaces an old one.
        cells = fill_table(table, [*read_results(path), *measurements], defaults)
        # Without one the file stays as it is: rows that are read lose columns in which nobody has
        # a value.
        if any(m.run_dir for cell in cells for m in cell.measurements):
            write_csv(path, result_rows(table, cells))
            # Six digits are kept: what is shown is what the rows say, not what they were made from.
            cells = fill_table(table, read_results(path), defaults)
        text += _section(table, cells, path)
    page = docs / "results.md"
    put_tables(page, {"results": text})
    return page


def read_results(path: Path) -> list[Measurement]:
    """Return the measurements of a file of committed rows; none if there is no such file."""
    rows = read_rows(path)
    return [from_row({k: v for k, v in row.items() if k not in _PLACE}) for row in rows]


def _section(table: Table, cells: Sequence[TableCell], path: Path) -> list[str]:
    text = [f"## {table.title}", ""]
    measured = [m for cell in cells for m in cell.measurements]
    if measured:
        text += [f"`fedif paper {table.name}`, rows: [{path.name}](results/{path.name})"]
        shown = [cell for cell in cells if cell.measurements]
        text += ["", *result_table(table, shown).to_markdown(), ""]
        rounds = sorted({m.rounds for m in measured})
        seeds = sorted({m.seed for m in measured})
        lacking = f"missing: {len(cells) - len(shown)} of {len(cells)} cells"
        text += [f"Rounds: {_listed(rounds)}; seeds: {_listed(seeds)}; {lacking}.", ""]
    else:
        text += [f"Not measured yet: `fedif paper {table.name}`.", ""]
    return text
