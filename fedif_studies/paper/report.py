"""The paper's tables beside what was measured here: as text, and as reports in folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from fedif_flower.run.rows import read_rows
from fedif_flower.tables import ResultTable
from fedif_studies.lab.curves import plot_curves
from fedif_studies.lab.measurements import ACCURACIES, Measurement, last_ten_remarks, to_row
from fedif_studies.lab.run import FAILURES
from fedif_studies.lab.table import Column, MeanStd, shown_mean, table_of, write_table
from fedif_studies.paper.cells import (
    TableCell,
    best_of_the_paper,
    best_rows,
    cell_name,
    keys_of,
    measured_or_missing,
    measurements_of,
    of_column,
    of_shared_seeds,
    with_measurements,
)
from fedif_studies.paper.curves import curve_rows
from fedif_studies.paper.tables import PaperTable
from fedif_studies.rows import replace_all_rows

Figure = Callable[[TableCell], MeanStd | None]
"""Returns one of a cell's figures, ``None`` where the cell lacks it."""
CellColumn = Column[TableCell]


def report_table(
    table: PaperTable, cells: Sequence[TableCell], output_dir: Path, console: Console, rounds: int
) -> None:
    """Write a table with pictures and rows into ``<output_dir>/<table>/``, and print it.

    If ``rounds`` is not the table's own number of rounds, the folder's name says so.
    """
    name = table.name if rounds == table.rounds else f"{table.name}-{rounds}-rounds"
    folder = output_dir / name
    remarks = [note(cells)]
    cells = measured_or_missing(cells)
    if not (table.is_timed or _beside_the_paper(cells)):
        remarks.append(f"The paper's figures are for {table.rounds} rounds, so they are not shown.")
    measured = measurements_of(cells)
    if not table.is_timed:
        remarks += last_ten_remarks(measured)
    if measured:
        remarks.append(_where_measured(measured))
    remarks += _failures(table, cells, output_dir)
    pictures = [] if table.is_timed else _draw_pictures(table, cells, folder)
    write_table(result_table(table, cells), folder, console, remarks, pictures)
    replace_all_rows(folder / "results.csv", result_rows(table, cells))
    curves = curve_rows(cells)
    if curves:
        replace_all_rows(folder / "curves.csv", curves)


def _where_measured(measurements: Iterable[Measurement]) -> str:
    """Return a sentence on the data and the machines of measurements."""
    data = set()
    machines = set()
    for measurement in measurements:
        data.add(measurement.data)
        machines.add(measurement.machine)
    return f"Measured on {', '.join(sorted(data))}. Machine: {'; '.join(sorted(machines))}."


def _failures(table: PaperTable, cells: Sequence[TableCell], output_dir: Path) -> list[str]:
    """Return a line for each cell that failed and has no measurement, with the latest reason."""
    measured = set()
    for cell in cells:
        for measurement in cell.measurements:
            measured.add(cell_name(cell.row, cell.column, measurement.seed))
    reasons = {}
    for row in read_rows(output_dir / table.name / FAILURES):
        if row["cell"] not in measured:
            reasons[row["cell"]] = row["reason"]
    return [f"Failed: {name}: {reason}" for name, reason in reasons.items()]


def result_rows(table: PaperTable, cells: Sequence[TableCell]) -> list[dict[str, str]]:
    """Return one row per cell and seed: its place in the table, and its measurement."""
    rows = []
    for cell in cells:
        place = {"table": table.name, "row": cell.row.key, "column": cell.column.key}
        rows += [{**place, **to_row(measurement)} for measurement in cell.measurements]
    return rows


def _draw_pictures(table: PaperTable, cells: Sequence[TableCell], folder: Path) -> list[Path]:
    """Draw accuracy over rounds, with a picture per column, and return the pictures' paths."""
    pictures = []
    for column in table.columns:
        path = folder / f"{column.key}.png"
        path.unlink(missing_ok=True)  # It may show runs that are gone.
        series = {cell.title: cell.measurements for cell in of_column(cells, column)}
        title = f"{table.title.partition(':')[0]}, {column.title}"
        if plot_curves(series, path, title, split=table.split):
            pictures.append(path)
    return pictures


def result_table(
    table: PaperTable, cells: Sequence[TableCell], earlier: Sequence[TableCell] = ()
) -> ResultTable:
    """Return any table of the paper as text.

    Parameters
    ----------
    table : PaperTable
        The table.
    cells : sequence of TableCell
        Its cells, those without a measurement included.
    earlier : sequence of TableCell
        The same cells measured with pixels scaled by the data set's own mean and deviation.
    """
    if table.is_timed:
        return _timing_table(table, cells)
    columns: list[CellColumn] = [
        ("column", lambda cell: cell.column.title),
        ("row", lambda cell: cell.title),
        ("seeds", lambda cell: str(len(cell.measurements) or "-")),
    ]
    # The best accuracies are bold, among means over the same seeds.
    comparable = of_shared_seeds(cells)
    for name, title in ACCURACIES.items():
        columns.append(_accuracy_column(title, _accuracy_of(table, name), comparable))
    if _beside_the_paper(cells):
        columns += _paper_columns(table)
    if earlier:
        columns.append(_earlier_column(table, earlier))
    return table_of(table.title, columns, cells, num_labels=2, is_grouped=True)


def _accuracy_of(table: PaperTable, name: str) -> Figure:
    """Return the function that gives one of a cell's accuracies, in percent."""
    return partial(TableCell.mean, name=f"{table.split}-{name}", scale=100)


def _accuracy_column(title: str, accuracy: Figure, comparable: Iterable[TableCell]) -> CellColumn:
    """Return the column of an accuracy; the best ones of ``comparable`` are bold."""
    best = best_rows(comparable, accuracy)

    def show(cell: TableCell) -> str:
        return _bold_if(cell.line_key in best, shown_mean(accuracy(cell), ".2f"))

    return title, show


def _paper_columns(table: PaperTable) -> list[CellColumn]:
    """Return two columns: the paper's figures, and how far the mean here is above them."""
    # The paper's best is taken over all of its rows, since some may have no line here.
    best = best_of_the_paper(table)
    last_ten = _accuracy_of(table, "last-ten")
    return [
        ("paper", lambda cell: _bold_if(cell.key in best, shown_mean(cell.paper, ".2f"))),
        ("last ten - paper", lambda cell: _less_the_paper(last_ten(cell), cell.paper)),
    ]


def _earlier_column(table: PaperTable, earlier: Iterable[TableCell]) -> CellColumn:
    """Return the column of accuracies with pixels scaled by the data's own mean."""
    last_ten = _accuracy_of(table, "last-ten")
    before = {cell.line_key: last_ten(cell) for cell in earlier}

    def show(cell: TableCell) -> str:
        return shown_mean(before.get(cell.line_key), ".2f")

    return "last ten, pixels by the data's own mean", show


def _less_the_paper(measured: MeanStd | None, paper: MeanStd | None) -> str:
    if measured is None or paper is None:
        return "-"
    return f"{measured.mean - paper.mean:+.2f}"


def _beside_the_paper(cells: Sequence[TableCell]) -> bool:
    """Tell whether the paper's figures are shown: cells with other numbers of rounds have none."""
    if not cells:
        return True
    return any(cell.paper is not None for cell in cells)


def _timing_table(table: PaperTable, cells: Sequence[TableCell]) -> ResultTable:
    """Return the table of seconds, with the number of evaluations per round."""
    heading = ["data set", "method", "training, s per client", "paper"]
    heading += ["aggregation, s per round", "paper", "evaluations per round"]
    lines = []
    for cell in cells:
        paper = table.paper[cell.row.key]
        paper_training, _ = paper[f"{cell.column.key}_training"]
        paper_aggregation, _ = paper[f"{cell.column.key}_aggregation"]
        line = [
            cell.column.title,
            cell.title,
            shown_mean(cell.mean("train-seconds-per-client"), ".4f"),
            f"{paper_training:.4f}",
            shown_mean(cell.mean("aggregation-seconds-per-round"), ".4f"),
            f"{paper_aggregation:.4f}",
            shown_mean(cell.mean("evaluations-per-round"), ".0f"),
        ]
        lines.append(line)
    return ResultTable(table.title, heading, lines, num_labels=2, grouped=True)


def note(cells: Sequence[TableCell], earlier: Sequence[TableCell] = ()) -> str:
    """Return a remark on a table: its rounds, its seeds, and how many cells are missing.

    ``earlier`` are the cells of its last column, which may have other seeds.
    """
    # A cell that both a CPU and a GPU measured counts once.
    count = len(keys_of(cells))
    measured = measurements_of(cells)
    if not measured:
        return f"Missing: all {count} cells."
    rounds = {measurement.rounds for measurement in measured}
    num_missing = count - len(keys_of(with_measurements(cells)))
    words = (
        f"Rounds: {_listed(rounds)}; seeds: {_seeds_of(measured)}; "
        f"missing: {num_missing} of {count} cells."
    )
    earlier_seeds = _seeds_of(measurements_of(earlier))
    if earlier_seeds:
        words += f" Seeds of the last column: {earlier_seeds}."
    return words


def _seeds_of(measurements: Iterable[Measurement]) -> str:
    """Return the seeds of runs as text, in order; empty if there are no runs."""
    return _listed({measurement.seed for measurement in measurements})


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _bold_if(is_bold: bool, text: str) -> str:
    if is_bold:
        return f"**{text}**"
    return text
