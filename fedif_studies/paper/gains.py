"""What FedIF brings beside FedAvg, column by column, here and in the paper: from the rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedif_flower.tables import ResultTable
from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.cells import TableCell
from fedif_studies.paper.findings import (
    AUC,
    LAST_TEN,
    Lead,
    leads_here,
    leads_of_paper,
    one_each,
)
from fedif_studies.paper.points import DATA, Filled

MALICIOUS_WEIGHT = "malicious-weight-share"
_HEADING = (
    "data set",
    "what clients do",
    "FedAvg",
    "FedIF",
    "lead",
    "lead in the paper",
    "AUC of FedIF's scores",
    "malicious clients' weight, FedAvg",
    "malicious clients' weight, FedIF",
)
_NONE = "-"


def gains_lines(filled: Filled) -> list[str]:
    """Return the table of FedIF's leads over FedAvg, in Markdown, and what it says in all.

    Parameters
    ----------
    filled : mapping of str to sequence of TableCell
        The cells of each table, by its name.
    """
    lines = []
    here: list[float] = []
    paper: list[float] = []
    for data, tables in DATA.items():
        for column, cells in _by_column([cell for name in tables for cell in filled[name]]).items():
            lead = _points(leads_here(cells))
            printed = _points(leads_of_paper(cells))
            lines.append([data, column, *_figures(cells, lead, printed)])
            if lead is not None and printed is not None:
                here.append(lead)
                paper.append(printed)
    table = ResultTable("", _HEADING, lines, num_labels=2, grouped=True)
    return [*table.to_markdown(), "", _in_all(here, paper, len(lines))]


def _by_column(cells: Sequence[TableCell]) -> Mapping[str, Sequence[TableCell]]:
    """Return the cells of each column; a column that stands in two tables counts once."""
    columns: dict[str, dict[tuple[str, str], TableCell]] = {}
    for cell in cells:
        columns.setdefault(cell.column.title, {}).setdefault((cell.row.key, cell.gpu), cell)
    return {column: list(by_place.values()) for column, by_place in columns.items()}


def _points(leads: Sequence[Lead]) -> float | None:
    """Return the lead of the only column that there is; ``None``: it is not known."""
    return leads[0].points if leads else None


def _figures(
    cells: Sequence[TableCell], lead: float | None, printed: float | None
) -> Sequence[str]:
    """Return what stands in a column's line."""
    measured = {cell.row.key: cell for cell in one_each(cells)}
    fedavg = measured.get("fedavg")
    fedif = measured.get("fedif")
    return (
        _shown(fedavg, LAST_TEN, 100, ".1f"),
        _shown(fedif, LAST_TEN, 100, ".1f"),
        _NONE if lead is None else f"{lead:+.1f}",
        _NONE if printed is None else f"{printed:+.1f}",
        _shown(fedif, AUC, 1, ".3f"),
        _shown(fedavg, MALICIOUS_WEIGHT, 100, ".0f"),
        _shown(fedif, MALICIOUS_WEIGHT, 100, ".0f"),
    )


def _shown(cell: TableCell | None, name: str, scale: int, form: str) -> str:
    """Return a figure of a cell as text; a dash where there is none."""
    figure: MeanStd | None = None
    if cell is not None:
        figure = cell.mean(name, scale)
    return _NONE if figure is None else figure.shown(form)


def _in_all(here: Sequence[float], paper: Sequence[float], num_columns: int) -> str:
    """Say how many columns have both methods, and how often FedIF is ahead in them."""
    if not here:
        return f"No column of {num_columns} has both methods yet."
    ahead = sum(lead > 0 for lead in here)
    ahead_in_paper = sum(lead > 0 for lead in paper)
    agreed = sum((first > 0) == (second > 0) for first, second in zip(here, paper, strict=True))
    return (
        f"Both methods are measured in {len(here)} of {num_columns} columns. FedIF is ahead in "
        f"{ahead} of them, in the paper in {ahead_in_paper}; both say the same in {agreed}."
    )
