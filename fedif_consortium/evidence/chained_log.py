r"""A log whose lines are chained by hashes: a keeper's, and a member's node's.

.. math:: h_t = H(h_{t-1} \,\|\, \text{entry}_t), \qquad h_0 = H(\text{empty})

with SHA-256. Who knows the last hash notices any earlier line that was changed, added or removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout

from fedif_flower.errors import EvidenceError, StorageError
from fedif_flower.foreign import refused_as, regular
from fedif_flower.storage import append_line, cut_torn_line, make_folder, writing

logger = logging.getLogger(__name__)
Entry = Mapping[str, object]
START = hashlib.sha256(b"").hexdigest()
# A first line may be torn off, and a power cut may leave zeros of it.
_BEGIN = re.compile(rb"[0-9a-f]{64} |[0-9a-f]{0,64}\0*")


class ChainedLog:
    """Chains entries.

    Parameters
    ----------
    head : str
        The last hash of the lines that are there already.
    write : callable
        Is given each line, which has no newline.
    """

    def __init__(self, head: str = START, write: Callable[[str], None] = lambda _: None) -> None:
        self.head = head
        self._write = write

    def append(self, entry: Entry) -> None:
        """Add an entry, which JSON can write."""
        text = json.dumps(entry, separators=(",", ":"))
        head = _next(self.head, text)
        self._write(f"{head} {text}")
        self.head = head


def verified(lines: Iterable[str], name: str) -> list[Entry]:
    """Return what each line of a log says, with its ``"hash"``; ``name`` is the log's.

    Raises
    ------
    EvidenceError
        Naming the first line that is no entry, or does not follow from the one before.
    """
    entries: list[Entry] = []
    head = START
    for number, line in enumerate(lines, 1):
        claimed, _, text = line.partition(" ")
        head = _next(head, text)
        if claimed != head:
            raise EvidenceError(f"line {number} of {name} does not follow from the others")
        with refused_as(EvidenceError, f"line {number} of {name} is no entry"):
            entries.append({**json.loads(text), "hash": head})
    return entries


def last_hash(entries: Sequence[Entry]) -> str:
    """Return the hash at which a log ends."""
    if not entries:
        return START
    return str(entries[-1]["hash"])


def read_log(path: Path) -> list[Entry]:
    """Return what each line of a log's file says, with its ``"hash"``, the oldest first.

    Raises
    ------
    StorageError
        If it cannot be read.
    EvidenceError
        If it was cut short, or naming the first line that was changed.
    """
    try:
        with open(path, encoding="utf-8", opener=regular) as file:
            *lines, rest = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    if rest:
        raise EvidenceError(f"{path} ends in half a line: it was cut short")
    return verified(lines, str(path))


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


def hold_folder(folder: Path, by: str) -> AcquireReturnProxy[FileLock]:
    """Make a log's folder if it is not there, and hold it; a killed process releases it.

    ``by`` is what holds it, for the error.

    Raises
    ------
    StorageError
        If another process holds it, or it cannot be written.
    """
    make_folder(folder)
    with writing(folder):
        try:
            return FileLock(folder / ".lock", timeout=0).acquire()
        except Timeout:
            raise StorageError(f"{folder} is in use by another {by}") from None


def open_log(path: Path) -> ChainedLog:
    """Return a file's log, which goes on after its last whole line; its owner alone can read it.

    Raises
    ------
    StorageError
        If the file cannot be written.
    EvidenceError
        If a line was changed, or the file is none of a log; then it stays as it is.
    """
    _require_log(path)
    if cut_torn_line(path, 0o600):
        logger.warning("The end of %s was torn off, and is written over.", path)
    return ChainedLog(last_hash(read_log(path)), partial(append_line, path))


def _require_log(path: Path) -> None:
    """Raise EvidenceError unless a file, if there is one, begins as a log's first line does."""
    with refused_as(StorageError, f"{path} cannot be read"):
        if not path.exists():
            return
        with open(path, "rb", opener=regular) as file:
            begin = file.read(len(START) + 1)
    if not _BEGIN.fullmatch(begin):
        raise EvidenceError(f"{path} is no log: it does not begin with a hash")


def _next(head: str, text: str) -> str:
    return hashlib.sha256(f"{head} {text}".encode()).hexdigest()
