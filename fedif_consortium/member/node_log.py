"""What a member's node keeps: one line for each message in and out, chained by hashes.

The lines lie in ``log.txt``: one that is gone or was changed is found by its number. Who has
written down a hash finds a cut at the end as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from fedif_consortium.evidence.chained_log import START, ChainedLog, verified
from fedif_flower.errors import EvidenceError, StorageError
from fedif_flower.messages.text import printable
from fedif_flower.storage import append_line, cut_torn_line, make_folder

logger = logging.getLogger(__name__)
OWNER_ALONE = 0o600
PRIVACY = "privacy"  # The kind of a line that says what noise has cost so far.
FILE = "log.txt"

Direction = Literal["in", "out"]
Entry = Mapping[str, object]


class NodeLog:
    """The log of a node, which one process holds at a time.

    Parameters
    ----------
    folder : Path
        Made if it is not there; its owner alone can read it.

    Raises
    ------
    StorageError
        If another process holds it, or it cannot be written.
    EvidenceError
        If a line was changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / FILE
        self._threads = threading.Lock()
        make_folder(folder)
        self._held = FileLock(folder / ".lock", timeout=0)
        try:
            self._held.acquire()
        except Timeout:
            raise StorageError(f"{folder} is in use by another node") from None
        except OSError as error:
            raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error
        if cut_torn_line(self._path, OWNER_ALONE):
            logger.warning("The end of %s was torn off, and is written over.", self._path)
        _, head = verified(_written(self._path), str(self._path))
        self._chain = ChainedLog(head, partial(append_line, self._path))

    def append(self, **entry: object) -> None:
        """Add a line; it is on the disk when this returns.

        Parameters
        ----------
        **entry : object
            What it says beside the time, which JSON can write. Texts, which a server or an app may
            have chosen, are cut and made printable.

        Raises
        ------
        StorageError
            If it cannot be written; then the message must not pass.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        told = {k: printable(v, 1000) if isinstance(v, str) else v for k, v in entry.items()}
        with self._threads:
            self._chain.append({"time": time, **told})

    def close(self) -> None:
        """Let another process have the log."""
        self._held.release()


def read_node_log(folder: Path) -> list[Entry]:
    """Read a node's log, and check that it is whole; the node may go on meanwhile.

    Returns
    -------
    list of mapping of str to object
        What each line says, the oldest first, with its ``"hash"``.

    Raises
    ------
    StorageError
        If it cannot be read.
    EvidenceError
        If it was cut short, or naming the first line that was changed.
    """
    path = folder / FILE
    if not path.is_file():
        raise StorageError(f"{folder} holds no log of a node")
    lines = _written(path)
    entries, _ = verified(lines, str(path))
    return [
        {**entry, "hash": line.partition(" ")[0]}
        for entry, line in zip(entries, lines, strict=True)
    ]


def lines_after(entries: Sequence[Entry], head: str) -> int:
    """Return how many lines of a log came after the one whose hash was written down.

    Raises
    ------
    EvidenceError
        If no line has that hash.
    """
    hashes = [START, *(entry["hash"] for entry in entries)]
    if head not in hashes:
        raise EvidenceError(
            f"no line has the hash {head!r}: since it was written down, lines were "
            "removed or changed"
        )
    return len(entries) - hashes.index(head)


def _written(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    *lines, rest = text.split("\n")
    if rest:
        raise EvidenceError(f"{path} ends in half a line: it was cut short")
    return lines
