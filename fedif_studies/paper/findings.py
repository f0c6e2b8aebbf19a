"""Sentences on what the pictures of the paper's tables show, computed from their cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedif_studies.lab.cells import title_of_data
from fedif_studies.lab.table import MeanStd, grouped
from fedif_studies.paper.cells import CellKey, TableCell, of_column
from fedif_studies.paper.tables import PaperTable

LAST_TEN = "test-last-ten"
AUC = "detection-auc"
AGGREGATION = "aggregation-seconds-per-round"
# Without this sentence, a reader would take FedIF's seconds for its whole cost.
LEFT_OUT = "FedIF takes its gradient while clients train, so its seconds here leave that out."
_SHARP = 0.95  # From this AUC on, scores are said to find malicious clients.


def one_each(cells: Iterable[TableCell]) -> list[TableCell]:
    """Return each measured cell once: with a CPU's measurements, or else with a GPU's."""
    chosen: dict[CellKey, TableCell] = {}
    # A CPU's cell has gpu = "" and sorts first.
    for cell in sorted(cells, key=lambda cell: cell.gpu):
        if cell.measurements:
            chosen.setdefault(cell.key, cell)
    return list(chosen.values())


class Lead(NamedTuple):
    """FedIF's lead over FedAvg in a column, in percentage points; negative if FedIF is behind."""

    column: str
    points: float


def leads_here(cells: Sequence[TableCell]) -> list[Lead]:
    """Return FedIF's lead over FedAvg in each column, as a mean over the seeds that both have.

    A CPU's measurements are compared if both methods have them, or else a GPU's.
    """
    leads = []
    for cells_of_column in grouped(cells, lambda cell: cell.column.key).values():
        gains = _gains_in(cells_of_column)
        if gains:
            leads.append(Lead(cells_of_column[0].column.title, statistics.fmean(gains)))
    return leads


def _gains_in(cells: Iterable[TableCell]) -> list[float]:
    """Return FedIF's lead over FedAvg in a column, in points, for each seed that both have."""
    by_gpu = grouped(cells, lambda cell: cell.gpu)
    for gpu in sorted(by_gpu):  # A CPU's cells have gpu = "" and come first.
        by_row = {cell.row.key: cell for cell in by_gpu[gpu]}
        if "fedif" in by_row and "fedavg" in by_row:
            gains = _gains(by_row["fedif"], by_row["fedavg"])
            if gains:
                return gains
    return []


def _gains(first: TableCell, second: TableCell) -> list[float]:
    """Return how many points ``first`` is above ``second``, for each seed that both have."""
    second_by_seed = {m.seed: m.figures[LAST_TEN] for m in second.measurements}
    gains = []
    for measurement in first.measurements:
        reference = second_by_seed.get(measurement.seed)
        if reference is not None:
            gains.append(100 * (measurement.figures[LAST_TEN] - reference))
    return gains


def leads_of_paper(cells: Iterable[TableCell]) -> list[Lead]:
    """Return FedIF's lead over FedAvg in each column, as the paper prints it."""
    printed: dict[str, dict[str, float]] = {}  # By column's title, then by row's key.
    for cell in cells:
        if cell.paper is not None:
            printed.setdefault(cell.column.title, {})[cell.row.key] = cell.paper.mean
    leads = []
    for column, by_row in printed.items():
        if "fedif" in by_row and "fedavg" in by_row:
            leads.append(Lead(column, by_row["fedif"] - by_row["fedavg"]))
    return leads


def accuracy_finding(cells: Sequence[TableCell]) -> str:
    """Return how often FedIF leads FedAvg here and in the paper, and how far both are apart."""
    here = leads_here(cells)
    paper = leads_of_paper(cells)
    of_paper = f"in the paper in {_num_ahead(paper)} of {len(paper)}"
    if not here:
        return (
            "FedIF and FedAvg are both measured in no column yet; "
            f"FedIF is above FedAvg {of_paper} columns."
        )
    largest = max(here, key=lambda lead: lead.points)
    words = f"FedIF is above FedAvg in {_num_ahead(here)} of {_columns(len(here))}, {of_paper}. "
    if largest.points > 0:
        words += f"Its largest lead is {largest.points:.1f} points ({largest.column}). "
    return words + _apart(cells)


def _num_ahead(leads: Iterable[Lead]) -> int:
    return sum(lead.points > 0 for lead in leads)


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _apart(cells: Sequence[TableCell]) -> str:
    """Return a sentence on how far measured cells are from the paper; empty if none has both."""
    distances = []
    for cell in one_each(cells):
        measured = cell.mean(LAST_TEN, 100)
        if measured is not None and cell.paper is not None:
            name = f"{cell.title}, {cell.column.title}"
            distances.append((abs(measured.mean - cell.paper.mean), name))
    if not distances:
        return ""
    median = statistics.median(distance for distance, _ in distances)
    farthest, name = max(distances)
    return (
        f"Here and paper are {median:.1f} points apart in the median of {len(distances)} cells, "
        f"{farthest:.1f} at most ({name})."
    )


def curves_finding(panels: Mapping[str, Mapping[str, float]]) -> str:
    """Return a sentence on the methods' accuracies after the last round.

    Parameters
    ----------
    panels : mapping of str to mapping of str to float
        The last accuracy in percent, by panel and then by method.
    """
    sentences = []
    for panel, last in panels.items():
        if last:
            figures = ", ".join(f"{method} {accuracy:.1f}" for method, accuracy in last.items())
            sentences.append(f"{panel}: {figures}.")
    if not sentences:
        return "No curve is there yet."
    return f"After the last round: {' '.join(sentences)}"


def auc_finding(panels: Mapping[str, Sequence[TableCell]]) -> str:
    """Return sentences on how often each method's scores find malicious clients.

    Parameters
    ----------
    panels : mapping of str to sequence of TableCell
        By data set, the cells of its columns with an attack.
    """
    sentences = []
    for data, cells in panels.items():
        for method, cells_of_method in grouped(cells, lambda cell: cell.row.title).items():
            measured = []
            for cell in one_each(cells_of_method):
                figure = cell.mean(AUC)
                if figure is not None:
                    measured.append((figure.mean, cell.column.title))
            if measured:
                sentences.append(f"{data}: {_sharpness(method, measured)}")
    if not sentences:
        return "No AUC is measured yet."
    return " ".join(sentences)


def _sharpness(method: str, measured: Sequence[tuple[float, str]]) -> str:
    sharp = sum(auc >= _SHARP for auc, _ in measured)
    least, column = min(measured)
    return (
        f"{method}'s scores reach an AUC of {_SHARP} in {sharp} of {_columns(len(measured))}; "
        f"the least is {least:.3f} ({column})."
    )


def seconds_finding(table: PaperTable, cells: Sequence[TableCell]) -> str:
    """Return sentences on how many times as long AFedSV aggregates as FedIF, here and in print."""
    sentences = []
    for column in table.columns:
        here = _seconds_here(of_column(cells, column))
        paper = {}
        for row in table.rows:
            figure = printed_seconds(table, row.key, column.key)
            if figure is not None:
                paper[row.key] = figure.mean
        words = []
        for where, seconds in (("here", here), ("in the paper", paper)):
            if "fedif" in seconds and "afedsv" in seconds:
                words.append(f"{_ratio(seconds['afedsv'], seconds['fedif'])} {where}")
        if words:
            sentences.append(f"{title_of_data(column.key)}: {', '.join(words)}.")
    if not sentences:
        return "No seconds are measured yet."
    return f"AFedSV's seconds as a multiple of FedIF's. {LEFT_OUT} {' '.join(sentences)}"


def _seconds_here(cells: Sequence[TableCell]) -> dict[str, float]:
    """Return the seconds of a column by method: a CPU's if it measured both FedIF and AFedSV.

    Otherwise they are those of a GPU that measured both; empty if there is none.
    """
    by_gpu: dict[str, dict[str, float]] = {}
    for cell in cells:
        figure = cell.mean(AGGREGATION)
        if figure is not None:
            by_gpu.setdefault(cell.gpu, {})[cell.row.key] = figure.mean
    for gpu in sorted(by_gpu):  # A CPU's seconds are under "" and come first.
        if by_gpu[gpu].keys() >= {"fedif", "afedsv"}:
            return by_gpu[gpu]
    return {}


def printed_seconds(table: PaperTable, row: str, column: str) -> MeanStd | None:
    """Return the seconds of aggregation that the paper prints; ``None`` if it prints none."""
    figure = table.paper.get(row, {}).get(f"{column}_aggregation")
    if figure is None:
        return None
    return MeanStd(*figure)


def _ratio(long: float, short: float) -> str:
    """Return how many times as long, in two digits, since seconds are not more exact."""
    return f"{float(f'{long / short:.2g}'):,.0f} times"
