"""The paper's tables beside what was measured: reports, and ``docs/results.md``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from fedif_flower.run.rows import read_rows
from fedif_flower.tables import ResultTable
from fedif_studies.lab.curves import plot_curves
from fedif_studies.lab.measurements import ACCURACIES, Measurement, from_row, to_row
from fedif_studies.lab.run import FAILURES
from fedif_studies.lab.table import MeanStd, write_table
from fedif_studies.paper.cells import (
    TableCell,
    best_rows,
    cell_name,
    fill_table,
    measured_or_missing,
    of_shared_seeds,
    wanted_runs,
    why_in_no_cell,
)
from fedif_studies.paper.tables import TABLES, Settings, Table
from fedif_studies.rows import add_rows, put_tables

_MOST_TOLD = 5  # Runs that are no cells.
_PLACE = ("table", "row", "column")
# How pixels were scaled before the protocol took over the scaling of AFedSV's authors.
_EARLIER: Settings = {"normalization": "data"}


def report_table(
    table: Table, cells: Sequence[TableCell], output_dir: Path, console: Console, rounds: int
) -> None:
    """Write a table with pictures and rows into ``<output>/<table>/``, and print it."""
    name = table.name if rounds == table.rounds else f"{table.name}-{rounds}-rounds"
    folder, said = output_dir / name, [note(cells)]
    cells = measured_or_missing(cells)
    if not (table.is_timed or _beside_the_paper(cells)):
        said.append(f"The paper's figures are of {table.rounds} rounds, so none stands here.")
    measured = [m for cell in cells for m in cell.measurements]
    if measured:
        data = ", ".join(sorted({m.data for m in measured}))
        machines = "; ".join(sorted({m.machine for m in measured}))
        said.append(f"Measured on {data}. Machine: {machines}.")
    said += _failures(table, cells, output_dir)
    write_table(result_table(table, cells), folder, console, said, _pictures(table, cells, folder))
    add_rows(folder / "results.csv", result_rows(table, cells), anew=True)


def _failures(table: Table, cells: Sequence[TableCell], output_dir: Path) -> list[str]:
    """Return why each cell failed that has no measurement, the latest reason of each."""
    there = {cell_name(cell.row, cell.column, m.seed) for cell in cells for m in cell.measurements}
    rows = read_rows(output_dir / table.name / FAILURES)
    reasons = {row["cell"]: row["reason"] for row in rows if row["cell"] not in there}
    return [f"Failed: {name}: {reason}" for name, reason in reasons.items()]


def result_rows(table: Table, cells: Sequence[TableCell]) -> list[dict[str, str]]:
    """Return one row per cell and seed, with where it belongs and everything measured."""
    return [
        {"table": table.name, "row": cell.row.key, "column": cell.column.key, **to_row(m)}
        for cell in cells
        for m in cell.measurements
    ]


def _pictures(table: Table, cells: Sequence[TableCell], folder: Path) -> list[Path]:
    """Draw accuracy over rounds, a picture per column, and return the pictures."""
    drawn = []
    for column in () if table.is_timed else table.columns:
        path = folder / f"{column.key}.png"
        series = {c.title: c.measurements for c in cells if c.column.key == column.key}
        title = f"{table.title.partition(':')[0]}, {column.title}"
        if plot_curves(series, path, title, split=table.split):
            drawn.append(path)
    return drawn


def result_table(
    table: Table, cells: Sequence[TableCell], earlier: Sequence[TableCell] = ()
) -> ResultTable:
    """Return any table of the paper as text.

    Parameters
    ----------
    table : Table
        The table.
    cells : sequence of TableCell
        Its cells, those without a measurement included.
    earlier : sequence of TableCell
        The same cells measured with pixels scaled by the data set's own mean and deviation.
    """
    if table.is_timed:
        return _timing_table(table, cells)
    names = [f"{table.split}-{name}" for name in ACCURACIES]
    figures: list[Callable[[TableCell], MeanStd | None]]
    figures = [partial(TableCell.mean, name=name, scale=100) for name in names]
    has_paper = _beside_the_paper(cells)
    if has_paper:
        figures.append(lambda cell: cell.paper)
    last_ten = figures[list(ACCURACIES).index("last-ten")]
    before = {cell.place: cell for cell in earlier}
    compared = of_shared_seeds(cells)
    best = [best_rows(compared, figure) for figure in figures]
    lines = []
    for cell in cells:
        found = [figure(cell) for figure in figures]
        shown = (
            _shown(one, ".2f", cell.place in top) for one, top in zip(found, best, strict=True)
        )
        line = [cell.column.title, cell.title, str(len(cell.measurements) or "-"), *shown]
        if has_paper:
            ten = last_ten(cell)
            line.append(
                "-" if ten is None or cell.paper is None else f"{ten.mean - cell.paper.mean:+.2f}"
            )
        if earlier:
            of_place = before.get(cell.place)
            line.append(_shown(None if of_place is None else last_ten(of_place), ".2f"))
        lines.append(line)
    heading = ["column", "row", "seeds", *ACCURACIES.values()]
    if has_paper:
        heading += ["paper", "last ten - paper"]
    if earlier:
        heading.append("last ten, pixels by the data's own mean")
    return ResultTable(table.title, heading, lines, num_labels=2, grouped=True)


def _beside_the_paper(cells: Sequence[TableCell]) -> bool:
    """Tell whether cells are of as many rounds as the paper's figures, so that these are shown."""
    return not cells or any(cell.paper is not None for cell in cells)


def _timing_table(table: Table, cells: Sequence[TableCell]) -> ResultTable:
    """Return the table of seconds, with the evaluations behind them."""
    heading = ["data set", "method", "training, s per client", "paper"]
    heading += ["aggregation, s per round", "paper", "evaluations per round"]
    lines = []
    for cell in cells:
        line = [cell.column.title, cell.title]
        for name in ("train-seconds-per-client", "aggregation-seconds-per-round"):
            kind = name.partition("-")[0].replace("train", "training")
            paper, _ = table.paper[cell.row.key][f"{cell.column.key}_{kind}"]
            line += [_shown(cell.mean(name), ".4f"), f"{paper:.4f}"]
        lines.append([*line, _shown(cell.mean("evaluations-per-round"), ".0f")])
    return ResultTable(table.title, heading, lines, num_labels=2, grouped=True)


def note(cells: Sequence[TableCell]) -> str:
    """Return what must be said beside a table: its rounds and seeds, and what is missing."""
    measured = [m for cell in cells for m in cell.measurements]
    rounds, seeds = (
        ", ".join(map(str, sorted(of)))
        for of in ({m.rounds for m in measured}, {m.seed for m in measured})
    )
    wanted = {(cell.row.key, cell.column.key) for cell in cells}
    there = {(cell.row.key, cell.column.key) for cell in cells if cell.measurements}
    if not measured:
        return f"Missing: all {len(wanted)} cells."
    lacking = len(wanted) - len(there)
    return f"Rounds: {rounds}; seeds: {seeds}; missing: {lacking} of {len(wanted)} cells."


def _shown(mean: MeanStd | None, form: str, bold: bool = False) -> str:
    text = "-" if mean is None else mean.shown(form)
    return f"**{text}**" if bold else text


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
        known = [*read_results(path), *measurements]
        cells, earlier = _filled(table, known, defaults)
        # Without one the file stays as it is: rows that are read lose columns in which nobody has
        # a value.
        if any(m.run_dir for cell in (*cells, *earlier) for m in cell.measurements):
            add_rows(path, result_rows(table, [*cells, *earlier]), anew=True)
            # Six digits are kept: what is shown is what the rows say, not what they were made from.
            cells, earlier = _filled(table, read_results(path), defaults)
        measured = {cell.place for cell in (*cells, *earlier) if cell.measurements}
        shown = [cell for cell in cells if cell.place in measured]
        text += [f"## {table.title}", ""]
        text += [f"`fedif paper {table.name}`, rows: [{path.name}](results/{path.name})", ""]
        text += [*result_table(table, shown, earlier).to_markdown(), "", note(cells), ""]
    page = docs / "results.md"
    put_tables(page, {"results": text})
    return page


def _filled(
    table: Table, measurements: Sequence[Measurement], defaults: Settings
) -> tuple[list[TableCell], list[TableCell]]:
    """Return a table's cells as the protocol has them, and as it had them before."""
    cells = fill_table(table, measurements, defaults)
    if table.is_timed:
        return cells, []
    return cells, fill_table(table, measurements, defaults, changed=_EARLIER)


def what_was_added(
    measurements: Sequence[Measurement], directories: Sequence[Path], defaults: Settings
) -> list[str]:
    """Return how many runs are cells of a table, and why others are none, a line each."""
    if not directories:
        return ["No rows were added: no folder with runs is given."]
    if not measurements:
        places = ", ".join(map(str, directories))
        return [f"No rows were added: no complete run with an evaluated model lies in {places}."]
    wanted = wanted_runs(TABLES.values(), defaults, _EARLIER)
    reasons = {one.run_dir: why_in_no_cell(one, wanted) for one in measurements}
    others = [f"{run_dir} is no cell: {why}." for run_dir, why in reasons.items() if why]
    count = len(measurements) - len(others)
    lines = [f"{count} of {len(measurements)} runs are cells of a table.", *others[:_MOST_TOLD]]
    if len(others) > _MOST_TOLD:
        lines.append(f"Nor are {len(others) - _MOST_TOLD} more runs.")
    return lines


def read_results(path: Path) -> list[Measurement]:
    """Return the measurements of a file of committed rows; none if there is no such file."""
    rows = read_rows(path)
    return [from_row({k: v for k, v in row.items() if k not in _PLACE}) for row in rows]
