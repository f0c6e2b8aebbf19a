"""A member's receipts on their way: with the next message, and with the statement at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedif_consortium.evidence.receipts import RoundChain, SignedHead, ToldRound
from fedif_flower.errors import EvidenceError

RECEIPTS_RECORD = "receipts"
MOST_ROUNDS = 1000  # In a message.
MOST_LEAVES = 2**53
_MOST_TEXT = 2**24
_MOST_LETTERS = 300  # Of a leaf.


@dataclass(frozen=True)
class Receipts:
    """What a member is told of a run's records: rounds that follow each other, at least one."""

    run: str
    rounds: Sequence[ToldRound]

    @property
    def head(self) -> SignedHead:
        """The last one."""
        return self.rounds[-1].head

    def to_record(self) -> ConfigRecord:
        """Return it as it travels."""
        rounds = json.dumps([told.cells() for told in self.rounds])
        return ConfigRecord({"run": self.run, "rounds": rounds})


def receipts_for(chain: RoundChain, client_id: int, seen: bytes) -> Receipts | None:
    """Return what a client is told that has seen an end of the chain; ``None``: nothing new."""
    rounds = chain.told(client_id, seen, MOST_ROUNDS)
    return Receipts(rounds[-1].head.run, rounds) if rounds else None


def read_receipts(content: RecordDict) -> Receipts | None:
    """Return what a server told of its records; ``None``: nothing.

    Raises
    ------
    EvidenceError
        If it is of other types, more than it can be, or no chain.
    """
    record = content.get(RECEIPTS_RECORD)
    if not isinstance(record, ConfigRecord):
        return None
    try:
        run, text = record["run"], record["rounds"]
        if not (isinstance(run, str) and isinstance(text, str) and len(text) <= _MOST_TEXT):
            raise ValueError("run or rounds")
        found = Receipts(run, [ToldRound.read(run, cells) for cells in json.loads(text)])
        if not 0 < len(found.rounds) <= MOST_ROUNDS:
            raise ValueError(f"{len(found.rounds)} rounds")
        for told in found.rounds:
            if not 0 <= told.start < told.head.size <= MOST_LEAVES:
                raise ValueError("a number of lines")
            if any(len(leaf) > _MOST_LETTERS for leaf in told.own.values()):
                raise ValueError("a line")
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EvidenceError(
            f"what the server told of its records is unreadable: {error!r:.200}"
        ) from error
    return found
