"""What members signed of their updates, as a table that others can check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import Kept
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.reports import RoundReport


class SignatureRecords(Callback, Kept):
    """Writes a line of ``signatures.csv`` for each signed reply; no file where there is none.

    Parameters
    ----------
    folder : RunFolder
        The run's.
    witness : ReplyWitness
        Has looked at the round's replies.
    """

    def __init__(self, folder: RunFolder, witness: ReplyWitness) -> None:
        self._table, self._witness = folder.signatures, witness
        self._rows: list[dict[str, Any]] = []

    def on_round(self, report: RoundReport) -> None:
        """Write the round's signatures."""
        self._add(
            {
                "round": report.round,
                "client_id": seen.node.client_id,
                **seen.signed.cells(),
            }
            for _, seen in sorted(self._witness.seen.items())
            if seen.signed is not None
        )

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:
        """Return the lines of the rounds after one, up to another."""
        return [row for row in self._rows if after < row["round"] <= last_round]

    def restore(
        self,
        lines: Sequence[Mapping[str, Any]],
        memory: Mapping[str, Any] | None,  # noqa: ARG002
        last_round: int,  # noqa: ARG002
    ) -> None:
        """Go on behind these lines."""
        self._rows = [dict(line) for line in lines]

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Write the lines so far."""
        rows, self._rows = self._rows, []
        self._add(rows)

    def _add(self, rows: Any) -> None:
        rows = list(rows)
        if rows and not self._rows:
            self._table.begin()
        self._rows += rows
        if rows:
            self._table.append(rows)
