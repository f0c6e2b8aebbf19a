"""The paper's tables beside what was measured: as text, and as reports of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from fedif_flower.run.rows import read_rows
from fedif_flower.tables import ResultTable
from fedif_studies.lab.curves import plot_curves
from fedif_studies.lab.measurements import ACCURACIES, last_ten_remarks, to_row
from fedif_studies.lab.run import FAILURES
from fedif_studies.lab.table import MeanStd, shown_mean, write_table
from fedif_studies.paper.cells import (
    TableCell,
    best_of_the_paper,
    best_rows,
    cell_name,
    measured_or_missing,
    measurements_of,
    of_shared_seeds,
)
from fedif_studies.paper.curves import curve_rows
from fedif_studies.paper.tables import PaperTable
from fedif_studies.rows import add_rows

Figure = Callable[[TableCell], MeanStd | None]


def report_table(
    table: PaperTable, cells: Sequence[TableCell], output_dir: Path, console: Console, rounds: int
) -> None:
    """Write a table with pictures and rows into ``<output>/<table>/``, and print it."""
    name = table.name if rounds == table.rounds else f"{table.name}-{rounds}-rounds"
    folder = output_dir / name
    remarks = [note(cells)]
    cells = measured_or_missing(cells)
    if not (table.is_timed or _beside_the_paper(cells)):
        remarks.append(f"The paper's figures are of {table.rounds} rounds, so none stands here.")
    measured = measurements_of(cells)
    if not table.is_timed:
        remarks += last_ten_remarks(measured)
    if measured:
        data = ", ".join(sorted({measurement.data for measurement in measured}))
        machines = "; ".join(sorted({measurement.machine for measurement in measured}))
        remarks.append(f"Measured on {data}. Machine: {machines}.")
    remarks += _failures(table, cells, output_dir)
    pictures = [] if table.is_timed else _draw_pictures(table, cells, folder)
    write_table(result_table(table, cells), folder, console, remarks, pictures)
    add_rows(folder / "results.csv", result_rows(table, cells), anew=True)
    curves = curve_rows(cells)
    if curves:
        add_rows(folder / "curves.csv", curves, anew=True)


def _failures(table: PaperTable, cells: Sequence[TableCell], output_dir: Path) -> list[str]:
    """Return why each cell failed that has no measurement, the latest reason of each."""
    measured = set()
    for cell in cells:
        measured |= {cell_name(cell.row, cell.column, m.seed) for m in cell.measurements}
    reasons = {}
    for row in read_rows(output_dir / table.name / FAILURES):
        if row["cell"] not in measured:
            reasons[row["cell"]] = row["reason"]
    return [f"Failed: {name}: {reason}" for name, reason in reasons.items()]


def result_rows(table: PaperTable, cells: Sequence[TableCell]) -> list[dict[str, str]]:
    """Return one row per cell and seed, with where it belongs and everything measured."""
    rows = []
    for cell in cells:
        place = {"table": table.name, "row": cell.row.key, "column": cell.column.key}
        rows += [{**place, **to_row(measurement)} for measurement in cell.measurements]
    return rows


def _draw_pictures(table: PaperTable, cells: Sequence[TableCell], folder: Path) -> list[Path]:
    """Draw accuracy over rounds, a picture per column, and return the pictures."""
    pictures = []
    for column in table.columns:
        path = folder / f"{column.key}.png"
        path.unlink(missing_ok=True)  # Of runs that may be gone.
        of_column = [cell for cell in cells if cell.column.key == column.key]
        series = {cell.title: cell.measurements for cell in of_column}
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
    figures = _figures(table)
    last_ten = figures["last-ten"]
    has_paper = _beside_the_paper(cells)
    # Bold, by figure: the best of those that have the same seeds.
    comparable = of_shared_seeds(cells)
    best = {name: best_rows(comparable, figure) for name, figure in figures.items()}
    # Some of the paper's rows may have no line here, and one of them may be its best.
    best_in_paper = best_of_the_paper(table)
    cells_before = {cell.place: cell for cell in earlier}
    lines = []
    for cell in cells:
        line = [cell.column.title, cell.title, str(len(cell.measurements) or "-")]
        for name, figure in figures.items():
            line.append(_shown(figure(cell), ".2f", is_bold=cell.place in best[name]))
        if has_paper:
            is_best = (cell.row.key, cell.column.key) in best_in_paper
            line.append(_shown(cell.paper, ".2f", is_bold=is_best))
            line.append(_less_the_paper(last_ten(cell), cell.paper))
        if earlier:
            before = cells_before.get(cell.place)
            line.append(_shown(None if before is None else last_ten(before), ".2f"))
        lines.append(line)
    heading = ["column", "row", "seeds", *ACCURACIES.values()]
    if has_paper:
        heading += ["paper", "last ten - paper"]
    if earlier:
        heading.append("last ten, pixels by the data's own mean")
    return ResultTable(table.title, heading, lines, num_labels=2, grouped=True)


def _figures(table: PaperTable) -> dict[str, Figure]:
    """Return what is shown of a cell's accuracies in percent, by name."""
    figures: dict[str, Figure] = {}
    for name in ACCURACIES:
        figures[name] = partial(TableCell.mean, name=f"{table.split}-{name}", scale=100)
    return figures


def _less_the_paper(measured: MeanStd | None, paper: MeanStd | None) -> str:
    if measured is None or paper is None:
        return "-"
    return f"{measured.mean - paper.mean:+.2f}"


def _beside_the_paper(cells: Sequence[TableCell]) -> bool:
    """Tell whether cells are of as many rounds as the paper's figures, so that these are shown."""
    return not cells or any(cell.paper is not None for cell in cells)


def _timing_table(table: PaperTable, cells: Sequence[TableCell]) -> ResultTable:
    """Return the table of seconds, with the evaluations behind them."""
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
            _shown(cell.mean("train-seconds-per-client"), ".4f"),
            f"{paper_training:.4f}",
            _shown(cell.mean("aggregation-seconds-per-round"), ".4f"),
            f"{paper_aggregation:.4f}",
            _shown(cell.mean("evaluations-per-round"), ".0f"),
        ]
        lines.append(line)
    return ResultTable(table.title, heading, lines, num_labels=2, grouped=True)


def note(cells: Sequence[TableCell], earlier: Sequence[TableCell] = ()) -> str:
    """Return what must be said beside a table: its rounds and seeds, and what is missing.

    ``earlier`` are the cells of its last column, which have seeds of their own.
    """
    # A cell that a GPU measured, too, counts once.
    places = {(cell.row.key, cell.column.key) for cell in cells}
    measured = measurements_of(cells)
    if not measured:
        return f"Missing: all {len(places)} cells."
    measured_places = {(cell.row.key, cell.column.key) for cell in cells if cell.measurements}
    rounds = ", ".join(map(str, sorted({measurement.rounds for measurement in measured})))
    seeds = ", ".join(map(str, sorted({measurement.seed for measurement in measured})))
    lacking = len(places) - len(measured_places)
    words = f"Rounds: {rounds}; seeds: {seeds}; missing: {lacking} of {len(places)} cells."
    earlier_seeds = sorted({measurement.seed for measurement in measurements_of(earlier)})
    if earlier_seeds:
        words += f" Seeds of the last column: {', '.join(map(str, earlier_seeds))}."
    return words


def _shown(mean: MeanStd | None, form: str, is_bold: bool = False) -> str:
    text = shown_mean(mean, form)
    if is_bold:
        return f"**{text}**"
    return text
