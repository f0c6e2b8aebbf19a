"""The log of a member's node: a line for each message in and out, chained by hashes.

The lines lie in ``log.txt``. A check of the file finds the first line that is missing or was
changed. To find that lines were cut off at the end, one has to write down the last hash elsewhere.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedif_consortium.evidence.chained_log import hold_folder, open_log
from fedif_flower.messages.text import printable

FILE = "log.txt"


class NodeLog:
    """The log of a node; one process can have it open at a time.

    Parameters
    ----------
    folder : Path
        The log's folder, which is made if it is missing. Only its owner can read the log's file.

    Raises
    ------
    StorageError
        If another process has the log open, or it cannot be read or written.
    EvidenceError
        If a line was changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hold = hold_folder(folder, "node")
        self._chain = open_log(folder / FILE)

    def append(self, **entry: object) -> None:
        """Add a line with the present time; it is on the disk when this returns.

        Parameters
        ----------
        **entry : object
            The line's values, which have to be serialisable as JSON. A server or an app may have
            chosen the texts, so these are made printable and cut to 1,000 characters.

        Raises
        ------
        StorageError
            If the line cannot be written; then the message must not pass.
        """
        line: dict[str, object] = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
        for name, value in entry.items():
            line[name] = value
            if isinstance(value, str):
                line[name] = printable(value, 1000)
        self._chain.append(line)

    def close(self) -> None:
        """Release the log, so that another process can open it."""
        self._hold.lock.release()
