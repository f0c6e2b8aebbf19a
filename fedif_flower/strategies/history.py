"""What happened in each round so far, in memory, for whoever looks at a strategy afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from fedif_flower.errors import require
from fedif_flower.strategies.reports import RoundReport

if TYPE_CHECKING:
    from pandas import DataFrame


Table = Literal["clients", "rounds"]
TABLES: tuple[str, ...] = get_args(Table)


class History:
    """The reports and metrics of a strategy's rounds, from its first round in this process on.

    Attributes
    ----------
    rounds : list of RoundReport
        In order.
    metrics : dict of int to dict
        By round (0: before the first), what evaluation and callbacks said of its model.
    """

    def __init__(self) -> None:
        self.rounds: list[RoundReport] = []
        self.metrics: dict[int, dict[str, float]] = {}

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self.rounds)

    def __repr__(self) -> str:
        """Say how much there is, and how to see it."""
        if not self.rounds:
            return "History(no rounds yet)"
        clients = {client.node.client_id for report in self.rounds for client in report.clients}
        return f"History({len(self)} rounds, {len(clients)} clients; to_pandas() shows them)"

    def lines(self, table: Table = "clients") -> list[dict[str, Any]]:
        """Return one mapping for each line of a table.

        Parameters
        ----------
        table : {"clients", "rounds"}
            A line for each client in each round, named as the columns of ``clients.csv``; or a
            line for each round, with its metrics.

        Raises
        ------
        ConfigError
            If there is no such table.
        """
        require(table in TABLES, "table", table, " or ".join(map(repr, TABLES)))
        if table == "clients":
            return [client.line(r.round) for r in self.rounds for client in r.clients]
        by_round: dict[int, dict[str, Any]] = {
            number: {"round": number, **metrics} for number, metrics in self.metrics.items()
        }
        for report in self.rounds:
            by_round.setdefault(report.round, {}).update(report.line())
        return [by_round[number] for number in sorted(by_round)]

    def to_pandas(self, table: Table = "clients") -> DataFrame:
        """Return a table as a pandas ``DataFrame``; see :meth:`lines` for which.

        Raises
        ------
        ImportError
            If pandas is not installed.
        ConfigError
            If there is no such table.
        """
        from pandas import DataFrame  # Nothing else needs it.

        return DataFrame(self.lines(table))
