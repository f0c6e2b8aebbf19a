"""The paper's tables with what was measured beside them, as text, and what to say of them."""

from __future__ import annotations

from collections.abc import Sequence

from fedif_flower.tables import ResultTable
from fedif_studies.lab.table import FIGURES, MeanStd
from fedif_studies.paper.compare import TableCell, best_paper_rows, best_rows
from fedif_studies.paper.tables import Table


def accuracy_table(table: Table, cells: Sequence[TableCell]) -> ResultTable:
    """Return a table of accuracies in percent; the best are in bold."""
    split = table.figure.removesuffix("-accuracy")
    heading = ["column", "row", "seeds", *FIGURES.values()]
    heading += ["paper", "last - paper", "last ten - paper", "best - paper"]
    best = {figure: best_rows(cells, split, figure) for figure in FIGURES}
    best_paper = best_paper_rows(cells)
    lines = []
    for cell in cells:
        key = (cell.row.key, cell.column.key)
        spreads = {figure: cell.accuracy(split, figure) for figure in FIGURES}
        line = [cell.column.title, cell.row.title, str(len(cell.measurements) or "-")]
        line += [_shown(spreads[figure], ".2f", key in best[figure]) for figure in FIGURES]
        paper = None if cell.paper is None else MeanStd(*cell.paper)
        line.append(_shown(paper, ".2f", key in best_paper))
        line += [_difference(spreads[figure], paper) for figure in FIGURES]
        lines.append(line)
    return ResultTable(table.title, heading, lines, num_labels=2, grouped=True)


def timing_table(table: Table, cells: Sequence[TableCell]) -> ResultTable:
    """Return the table of seconds, with the evaluations behind them."""
    heading = ["data set", "method", "training, s per client", "paper"]
    heading += ["aggregation, s per round", "paper", "evaluations per round"]
    lines = []
    for cell in cells:
        paper = table.paper[cell.row.key]
        training = paper[f"{cell.column.key}_training"][0]
        aggregation = paper[f"{cell.column.key}_aggregation"][0]
        lines.append(
            [
                cell.column.title,
                cell.row.title,
                _shown(cell.figure("train-seconds-per-client"), ".4f"),
                f"{training:.4f}",
                _shown(cell.figure("aggregation-seconds-per-round"), ".4f"),
                f"{aggregation:.4f}",
                _shown(cell.figure("evaluations-per-round"), ".0f"),
            ]
        )
    return ResultTable(table.title, heading, lines, num_labels=2, grouped=True)


def result_table(table: Table, cells: Sequence[TableCell]) -> ResultTable:
    """Return any table of the paper as text."""
    make = timing_table if table.figure == "seconds" else accuracy_table
    return make(table, cells)


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
