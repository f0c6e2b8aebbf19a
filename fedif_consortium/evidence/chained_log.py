r"""A log whose lines are chained by hashes; keepers of masks and members' nodes write one.

.. math:: h_t = H(h_{t-1} \,\|\, \text{entry}_t), \qquad h_0 = H(\text{empty})

with H = SHA-256. Each line of the file is a hash, a space and an entry in JSON. Who knows the last
hash notices any earlier line that was changed, added or removed.
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
START = hashlib.sha256(b"").hexdigest()  # h_0
# How a log's file may begin: with a whole hash and a space, or with a torn first line. After a
# power cut, zero bytes may stand in place of what was not written.
_BEGIN = re.compile(rb"[0-9a-f]{64} |[0-9a-f]{0,64}\0*")


class ChainedLog:
    """Chains new entries to a log.

    Parameters
    ----------
    head : str
        The hash of the last line that was written already.
    write : callable
        Is called with each new line, without a newline at its end.

    Attributes
    ----------
    head : str
        The hash of the last line.
    """

    def __init__(self, head: str = START, write: Callable[[str], None] = lambda _: None) -> None:
        self.head = head
        self._write = write

    def append(self, entry: Entry) -> None:
        """Add an entry, whose values have to be serialisable as JSON."""
        text = json.dumps(entry, separators=(",", ":"))
        head = _next(self.head, text)
        self._write(f"{head} {text}")
        self.head = head


def verified(lines: Iterable[str], name: str) -> list[Entry]:
    """Return the entry in each line of a log, with the line's hash as ``"hash"``.

    Parameters
    ----------
    lines : iterable of str
        All lines of the log, without newlines.
    name : str
        The log's name, for error messages.

    Raises
    ------
    EvidenceError
        If a line is no entry, or its hash does not follow from the line before.
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
    """Return the hash of a log's last line; :data:`START` if the log is empty."""
    if not entries:
        return START
    return str(entries[-1]["hash"])


def read_log(path: Path) -> list[Entry]:
    """Return the entries in a log's file, the oldest first, each with its line's ``"hash"``.

    Raises
    ------
    StorageError
        If the file cannot be read.
    EvidenceError
        If the last line is not whole, or a line was changed.
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
    """Return how many lines of a log came after the line whose hash is ``head``.

    Raises
    ------
    EvidenceError
        If no line has that hash: lines were changed or removed since somebody wrote it down.
    """
    hashes = [START, *(entry["hash"] for entry in entries)]
    if head not in hashes:
        raise EvidenceError(
            f"no line has the hash {head!r}: since it was written down, lines were "
            "removed or changed"
        )
    return len(entries) - hashes.index(head)


def hold_folder(folder: Path, by: str) -> AcquireReturnProxy[FileLock]:
    """Lock a log's folder, which is made if it is missing, and return the lock.

    The lock is released when its process ends, even if it is killed.

    Parameters
    ----------
    folder : Path
        The folder.
    by : str
        The kind of program that locks it, for the error message.

    Raises
    ------
    StorageError
        If another process has locked the folder, or it cannot be written.
    """
    make_folder(folder)
    with writing(folder):
        try:
            return FileLock(folder / ".lock", timeout=0).acquire()
        except Timeout:
            raise StorageError(f"{folder} is in use by another {by}") from None


def open_log(path: Path) -> ChainedLog:
    """Return the log in a file, to which entries can be added; check all its lines first.

    Half a line at the end, as a crash leaves it, is cut off. A missing file is made with mode 0600.

    Raises
    ------
    StorageError
        If the file cannot be read or written.
    EvidenceError
        If a line was changed, or the file is no log. A file that is no log is not changed.
    """
    _require_log(path)
    if cut_torn_line(path, 0o600):
        logger.warning("The end of %s was torn off, and is written over.", path)
    return ChainedLog(last_hash(read_log(path)), partial(append_line, path))


def _require_log(path: Path) -> None:
    """Raise EvidenceError if there is a file that does not begin as a log's first line does."""
    with refused_as(StorageError, f"{path} cannot be read"):
        if not path.exists():
            return
        with open(path, "rb", opener=regular) as file:
            begin = file.read(len(START) + 1)
    if not _BEGIN.fullmatch(begin):
        raise EvidenceError(f"{path} is no log: it does not begin with a hash")


def _next(head: str, text: str) -> str:
    return hashlib.sha256(f"{head} {text}".encode()).hexdigest()
