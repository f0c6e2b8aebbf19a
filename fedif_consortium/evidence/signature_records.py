"""What members signed of their updates, as a table that others can check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_consortium.evidence.signed_update import SignedUpdate, UpdateStatement
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
                "round": report.server_round,
                "client_id": seen.node.client_id,
                "node_id": seen.node.node_id,
                "asked_in": seen.signed.statement.server_round,
                "examples": seen.signed.statement.examples,
                "received": seen.signed.statement.received.hex(),
                "sent": seen.signed.statement.sent.hex(),
                "key": seen.signed.key.hex(),
                "signature": seen.signed.signature.hex(),
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


def read_signature(run: str, row: Mapping[str, str]) -> SignedUpdate:
    """Return what a line of ``signatures.csv`` says was signed.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it is no such line.
    """
    statement = UpdateStatement(
        run=run,
        server_round=int(row["asked_in"]),
        node=int(row["node_id"]),
        examples=float(row["examples"]),
        received=bytes.fromhex(row["received"]),
        sent=bytes.fromhex(row["sent"]),
    )
    return SignedUpdate(statement, bytes.fromhex(row["key"]), bytes.fromhex(row["signature"]))
