"""The table of FedIF's leads over FedAvg, column by column, here and in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedif_flower.tables import shown_number
from fedif_studies.lab.table import Column, shown_mean, table_of
from fedif_studies.paper.cells import TableCell
from fedif_studies.paper.findings import AUC, LAST_TEN, leads_here, leads_of_paper, one_each
from fedif_studies.paper.points import DATA, Filled

MALICIOUS_WEIGHT = "malicious-weight-share"


class _ColumnGain(NamedTuple):
    """A column of the paper's tables: both methods' cells, and FedIF's leads here and in print."""

    data: str
    column: str
    fedavg: TableCell | None
    fedif: TableCell | None
    lead: float | None
    lead_in_paper: float | None


def gains_lines(filled: Filled) -> list[str]:
    """Return the table of FedIF's leads over FedAvg, in Markdown, and a sentence that sums it up.

    Parameters
    ----------
    filled : mapping of str to sequence of TableCell
        The cells of each table, by its name.
    """
    gains = []
    for data, tables in DATA.items():
        # The two tables of a data set are joined, so that a column that both have counts once.
        cells: list[TableCell] = []
        for name in tables:
            cells += filled[name]
        gains += _gains_in(data, cells)
    table = table_of("", _COLUMNS, gains, num_labels=2, is_grouped=True)
    return [*table.to_markdown(), "", _in_all(gains)]


def _gains_in(data: str, cells: Sequence[TableCell]) -> list[_ColumnGain]:
    """Return FedIF's lead in each column of a data set."""
    measured = {(cell.column.title, cell.row.key): cell for cell in one_each(cells)}
    leads = {lead.column: lead.points for lead in leads_here(cells)}
    printed = {lead.column: lead.points for lead in leads_of_paper(cells)}
    gains = []
    for column in dict.fromkeys(cell.column.title for cell in cells):
        gain = _ColumnGain(
            data,
            column,
            fedavg=measured.get((column, "fedavg")),
            fedif=measured.get((column, "fedif")),
            lead=leads.get(column),
            lead_in_paper=printed.get(column),
        )
        gains.append(gain)
    return gains


def _shown_figure(cell: TableCell | None, name: str, form: str, scale: int = 1) -> str:
    """Return a figure of a cell as text; a dash where there is none."""
    if cell is None:
        return "-"
    return shown_mean(cell.mean(name, scale), form)


def _in_all(gains: Sequence[_ColumnGain]) -> str:
    """Return a sentence on how many columns have both methods, and how often FedIF leads there."""
    count = 0
    ahead = 0
    ahead_in_paper = 0
    agreed = 0
    for gain in gains:
        if gain.lead is None or gain.lead_in_paper is None:
            continue
        count += 1
        ahead += gain.lead > 0
        ahead_in_paper += gain.lead_in_paper > 0
        agreed += (gain.lead > 0) == (gain.lead_in_paper > 0)
    if not count:
        return f"No column of {len(gains)} has both methods yet."
    return (
        f"Both methods are measured in {count} of {len(gains)} columns. FedIF is ahead in "
        f"{ahead} of them, in the paper in {ahead_in_paper}; both say the same in {agreed}."
    )


_COLUMNS: Sequence[Column[_ColumnGain]] = (
    ("data set", lambda gain: gain.data),
    ("what clients do", lambda gain: gain.column),
    ("FedAvg", lambda gain: _shown_figure(gain.fedavg, LAST_TEN, ".1f", scale=100)),
    ("FedIF", lambda gain: _shown_figure(gain.fedif, LAST_TEN, ".1f", scale=100)),
    ("lead", lambda gain: shown_number(gain.lead, "+.1f")),
    ("lead in the paper", lambda gain: shown_number(gain.lead_in_paper, "+.1f")),
    ("AUC of FedIF's scores", lambda gain: _shown_figure(gain.fedif, AUC, ".3f")),
    (
        "malicious clients' weight, FedAvg",
        lambda gain: _shown_figure(gain.fedavg, MALICIOUS_WEIGHT, ".0f", scale=100),
    ),
    (
        "malicious clients' weight, FedIF",
        lambda gain: _shown_figure(gain.fedif, MALICIOUS_WEIGHT, ".0f", scale=100),
    ),
)
