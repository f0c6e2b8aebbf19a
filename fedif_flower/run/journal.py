"""Lines that a run's checkpoints share, in one file that grows and is not written again.

A checkpoint holds how many bytes of the file are its own, and their SHA-256. What lies behind them
is of a checkpoint that was not completed, or of rounds that were given up: it is cut off.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedif_flower.storage import write_atomically, writing

Lines = Mapping[str, Sequence[Mapping[str, Any]]]  # Of each table, in their order.


class JournalEnd(NamedTuple):
    """Where a checkpoint's lines end: its first ``size`` bytes have this SHA-256."""

    size: int = 0
    sha256: str = hashlib.sha256().hexdigest()


class Journal:
    """The file of a run's lines: one JSON object a checkpoint, with those that came since the last.

    Parameters
    ----------
    path : Path
        Made with the first lines; its folder exists then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._digest = self._next = hashlib.sha256()

    def append(self, lines: Lines) -> JournalEnd:
        """Write lines behind those of the last completed checkpoint; return where they end.

        They count once :meth:`keep` is called: until then the next ones replace them.

        Raises
        ------
        StorageError
            If they cannot be written.
        """
        self._next = self._digest.copy()
        if not any(lines.values()):
            return JournalEnd(self._size, self._next.hexdigest())
        content = json.dumps(lines).encode() + b"\n"
        with writing(self.path), self.path.open("r+b" if self.path.exists() else "xb") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._next.update(content)
        return JournalEnd(self._size + len(content), self._next.hexdigest())

    def keep(self, end: JournalEnd) -> None:
        """Let the lines appended last count: the checkpoint that names them is complete."""
        self._size, self._digest = end.size, self._next

    def go_on(self, source: Path, end: JournalEnd) -> None:
        """Continue behind a checkpoint's lines, copied from ``source`` where that is another file.

        Raises
        ------
        ValueError
            If the lines are not there as they were written.
        StorageError
            If they cannot be copied.
        """
        content = _read(source, end)
        if source.resolve() != self.path.resolve():
            write_atomically(self.path, content)
        self._size, self._digest = end.size, hashlib.sha256(content)


def read_lines(path: Path, end: JournalEnd) -> dict[str, list[dict[str, Any]]]:
    """Return the lines up to a checkpoint's, by table.

    Raises
    ------
    ValueError
        If they are not there as they were written.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for content in _read(path, end).splitlines():
        for table, lines in json.loads(content).items():
            found.setdefault(table, []).extend(lines)
    return found


def _read(path: Path, end: JournalEnd) -> bytes:
    if not end.size:
        return b""
    try:
        with path.open("rb") as file:
            content = file.read(end.size)
    except OSError as error:
        raise ValueError(
            f"its lines cannot be read from {path}, which belongs beside it: {error.strerror}"
        ) from error
    if hashlib.sha256(content).hexdigest() != end.sha256:
        raise ValueError(f"its lines in {path} are damaged: their SHA-256 differs")
    return content
