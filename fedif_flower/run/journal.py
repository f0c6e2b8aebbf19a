"""Lines that a run's checkpoints share, in one file that grows and is not written again.

A checkpoint holds how many bytes of the file are its own, and a hash of them. What lies behind
them is of a checkpoint that was not completed, or of rounds that were given up: it is cut off.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedif_flower.storage import writing

Lines = Mapping[str, Sequence[Mapping[str, Any]]]  # Of each table, in their order.


class JournalEnd(NamedTuple):
    """Where a checkpoint's lines end: how many bytes, and the hash of a chain of batches."""

    size: int = 0
    sha256: str = ""

    def after(self, batch: bytes) -> JournalEnd:
        """Return the end behind one more batch of lines."""
        digest = hashlib.sha256(self.sha256.encode() + batch).hexdigest()
        return JournalEnd(self.size + len(batch), digest)


def append_lines(path: Path, lines: Lines, end: JournalEnd) -> JournalEnd:
    """Write a batch of lines behind those that a complete checkpoint has; return where they end.

    It is one JSON object in a line. The file's folder exists.

    Raises
    ------
    StorageError
        If they cannot be written.
    """
    if not any(lines.values()):
        return end
    batch = json.dumps(lines).encode() + b"\n"
    with writing(path), path.open("r+b" if path.exists() else "xb") as file:
        file.truncate(end.size)
        file.seek(end.size)
        file.write(batch)
        file.flush()
        os.fsync(file.fileno())
    return end.after(batch)


def read_lines(path: Path, end: JournalEnd) -> dict[str, list[dict[str, Any]]]:
    """Return the lines up to a checkpoint's, by table.

    Raises
    ------
    OSError, ValueError
        If they are not there as they were written.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    if not end.size:
        return found
    with path.open("rb") as file:
        batches = file.read(end.size).splitlines(keepends=True)
    there = JournalEnd()
    for batch in batches:
        there = there.after(batch)
    if there != end:
        raise ValueError(f"its lines in {path} are damaged: their SHA-256 differs")
    for batch in batches:
        for table, lines in json.loads(batch).items():
            found.setdefault(table, []).extend(lines)
    return found
