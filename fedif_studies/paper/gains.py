"""What FedIF brings beside FedAvg, column by column, here and in the paper: from the rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from fedif_flower.tables import ResultTable, shown_number
from fedif_studies.lab.table import shown_mean
from fedif_studies.paper.cells import TableCell
from fedif_studies.paper.findings import AUC, LAST_TEN, leads_here, leads_of_paper, one_each
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
        # A column that stands in two tables counts once.
        cells: list[TableCell] = []
        for name in tables:
            cells += filled[name]
        measured = {(cell.column.title, cell.row.key): cell for cell in one_each(cells)}
        leads = {lead.column: lead.points for lead in leads_here(cells)}
        printed = {lead.column: lead.points for lead in leads_of_paper(cells)}
        for column in dict.fromkeys(cell.column.title for cell in cells):
            fedavg = measured.get((column, "fedavg"))
            fedif = measured.get((column, "fedif"))
            line = [
                data,
                column,
                _shown_figure(fedavg, LAST_TEN, ".1f", scale=100),
                _shown_figure(fedif, LAST_TEN, ".1f", scale=100),
                shown_number(leads.get(column), "+.1f"),
                shown_number(printed.get(column), "+.1f"),
                _shown_figure(fedif, AUC, ".3f"),
                _shown_figure(fedavg, MALICIOUS_WEIGHT, ".0f", scale=100),
                _shown_figure(fedif, MALICIOUS_WEIGHT, ".0f", scale=100),
            ]
            lines.append(line)
            if column in leads and column in printed:
                here.append(leads[column])
                paper.append(printed[column])
    table = ResultTable("", _HEADING, lines, num_labels=2, grouped=True)
    return [*table.to_markdown(), "", _in_all(here, paper, len(lines))]


def _shown_figure(cell: TableCell | None, name: str, form: str, scale: int = 1) -> str:
    """Return a figure of a cell as text; a dash where there is none."""
    if cell is None:
        return "-"
    return shown_mean(cell.mean(name, scale), form)


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
