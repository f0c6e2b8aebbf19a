"""What a member's node keeps: one line for each message in and out, chained by hashes.

The lines lie in ``log-000001.txt``, ``log-000002.txt`` and so on. A file that is full ends with a
line that says so, and the chain runs on in the next: a line or a file that is gone, and one that
was cut short, are found by name. Who has written down a hash finds a cut at the end as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Self

from filelock import FileLock, Timeout

from fedif_flower.errors import EvidenceError, StorageError
from fedif_flower.evidence.chained_log import START, ChainedLog, verified
from fedif_flower.messages.text import printable
from fedif_flower.settings import Settings, setting
from fedif_flower.storage import append_line, cut_torn_line, make_folder

logger = logging.getLogger(__name__)
OWNER_ALONE = 0o600
PRIVACY = "privacy"  # The kind of a line that says what noise has cost so far.
_CLOSED: Mapping[str, object] = {"closed": True}  # The last line of a file that is full.

Direction = Literal["in", "out"]
Decision = Literal["passed", "refused"]
Entry = Mapping[str, object]


class LogSettings(Settings):
    """``[log]`` of a member's policy."""

    folder: str = setting(
        "node-log", "Folder of the log, in the policy's `state` folder; made if it is not there."
    )
    file_bytes: int = setting(
        10 << 20, "A file of the log is followed by another when it is so long.", ge=1024
    )


class NodeLog:
    """The log of a node, which one process holds at a time.

    Parameters
    ----------
    folder : Path
        Made if it is not there; its owner alone can read it.
    file_bytes : int
        A file is followed by another when it is so long.
    now : callable
        Returns the time, with its zone.

    Raises
    ------
    StorageError
        If another process holds it, or it cannot be written.
    EvidenceError
        If a line of its last file was changed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        file_bytes: int = 10 << 20,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.folder, self._file_bytes, self._now = folder, file_bytes, now
        self._threads = threading.Lock()
        make_folder(folder)
        self._held = FileLock(folder / ".lock", timeout=0)
        try:
            self._held.acquire()
        except Timeout:
            raise StorageError(f"{folder} is in use by another node") from None
        except OSError as error:
            raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error
        try:
            self._open_last()
        except BaseException:
            self.close()
            raise

    @property
    def head(self) -> str:
        """The last line's hash."""
        return self._chain.head

    def append(
        self,
        *,
        direction: Direction,
        run_id: int,
        app: str,
        kind: str,
        bytes: int,
        digest: str,
        decision: Decision,
        reason: str = "",
        **more: object,
    ) -> None:
        """Add a line; it is on the disk when this returns.

        Parameters
        ----------
        direction : str
            ``"in"`` or ``"out"``.
        run_id : int
            Flower's id of the run.
        app : str
            The app, with its hash where it is known.
        kind : str
            Flower's type of message: ``"train"``, ``"query"`` and so on.
        bytes : int
            Length of the message's content.
        digest : str
            SHA-256 of the content, in hex.
        decision : str
            ``"passed"`` or ``"refused"``.
        reason : str
            Why it was refused.
        **more : object
            Further figures of the line, which JSON can write.

        Raises
        ------
        StorageError
            If it cannot be written; then the message must not pass.
        """
        entry = {
            "time": self._now().astimezone(UTC).isoformat(timespec="seconds"),
            "direction": direction,
            "run": run_id,
            # What a server or an app wrote.
            "app": printable(app),
            "kind": printable(kind),
            "bytes": bytes,
            "digest": digest,
            "decision": decision,
            "reason": printable(reason, 1000),
            **more,
        }
        with self._threads:
            if self._is_closed or self._path.stat().st_size >= self._file_bytes:
                self._begin_next()
            self._chain.append(entry)

    def close(self) -> None:
        """Let another process have the log."""
        self._held.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_last(self) -> None:
        found = _files(self.folder) or [self.folder / _name(1)]
        before = _last_hash(found[-2]) if len(found) > 1 else START
        self._path = found[-1]
        if cut_torn_line(self._path, OWNER_ALONE):
            logger.warning("The end of %s was torn off, and is written over.", self._path)
        lines = _read_file(self._path, before)
        self._is_closed = bool(lines) and lines[-1].entry == _CLOSED
        self._chain = self._chained(lines[-1].hash if lines else before)

    def _begin_next(self) -> None:
        if not self._is_closed:
            self._chain.append(_CLOSED)
            self._is_closed = True
        path = self.folder / _name(_number(self._path) + 1)
        cut_torn_line(path, OWNER_ALONE)
        self._path, self._is_closed = path, False
        self._chain = self._chained(self._chain.head)

    def _chained(self, head: str) -> ChainedLog:
        return ChainedLog(head, partial(append_line, self._path))


class NodeLine(NamedTuple):
    """A line of a log: its file, its hash, and what it says."""

    file: str
    hash: str
    entry: Entry


@dataclass(frozen=True)
class ReadLog:
    """A node's log, which is whole.

    Attributes
    ----------
    lines : list of NodeLine
        One for each message, the oldest first.
    hashes : list of str
        What was the last hash, from the start on.
    """

    lines: list[NodeLine]
    hashes: list[str]

    @property
    def head(self) -> str:
        """The last line's hash, to be written down."""
        return self.hashes[-1]

    def lines_after(self, head: str) -> int:
        """Return how many lines came after the one whose hash was written down.

        Raises
        ------
        EvidenceError
            If no line has that hash.
        """
        if head not in self.hashes:
            raise EvidenceError(
                f"no line has the hash {head!r}: since it was written down, lines were removed or "
                "changed"
            )
        return len(self.hashes) - 1 - self.hashes.index(head)


def read_node_log(folder: Path) -> ReadLog:
    """Read a node's log, and check that it is whole; the node may go on meanwhile.

    Raises
    ------
    StorageError
        If it cannot be read.
    EvidenceError
        Naming the file that is missing or was cut short, or the first line that was changed.
    """
    lines: list[NodeLine] = []
    head, found = START, _files(folder)
    if not found:
        raise StorageError(f"{folder} holds no log of a node")
    for path in found:
        own = _read_file(path, head)
        if path != found[-1] and (not own or own[-1].entry != _CLOSED):
            raise EvidenceError(f"{path} was cut short: its closing line is gone")
        lines += own
        head = own[-1].hash if own else head
    following = folder / _name(len(found) + 1)
    if lines and lines[-1].entry == _CLOSED and not following.exists():
        raise EvidenceError(f"{following} is missing")
    return ReadLog(
        [line for line in lines if line.entry != _CLOSED], [START, *(line.hash for line in lines)]
    )


def _name(number: int) -> str:
    return f"log-{number:06d}.txt"


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("log-"))


def _files(folder: Path) -> list[Path]:
    """Return a log's files in their order; none may be missing."""
    found = {path.name for path in folder.glob("log-*.txt")}
    wanted = [_name(number) for number in range(1, len(found) + 1)]
    if missing := [name for name in wanted if name not in found]:
        raise EvidenceError(f"{folder / missing[0]} is missing")
    return [folder / name for name in wanted]


def _read_file(path: Path, head: str) -> list[NodeLine]:
    """Return the lines of a file, which follow from ``head``."""
    written = _written(path)
    entries, _ = verified(written, str(path), head)
    return [NodeLine(path.name, *pair) for pair in zip(map(_hash, written), entries, strict=True)]


def _last_hash(path: Path) -> str:
    written = _written(path)
    if not written:
        raise EvidenceError(f"{path} was cut short: its closing line is gone")
    return _hash(written[-1])


def _written(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    *lines, rest = text.split("\n")
    if rest:
        raise EvidenceError(f"{path} ends in half a line: it was cut short")
    return lines


def _hash(line: str) -> str:
    return line.partition(" ")[0]
