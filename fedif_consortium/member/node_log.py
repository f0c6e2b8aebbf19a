"""What a member's node keeps: one line for each message in and out, chained by hashes.

The lines lie in ``log.txt``: one that is gone or was changed is found by its number. Whoever has
written down a hash also finds that lines were cut off at the end.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedif_consortium.evidence.chained_log import hold_folder, open_log
from fedif_flower.messages.text import printable

FILE = "log.txt"


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
        self.folder = folder
        self._hold = hold_folder(folder, "node")
        self._chain = open_log(folder / FILE)

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
        line: dict[str, object] = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
        for name, value in entry.items():
            line[name] = value
            if isinstance(value, str):
                line[name] = printable(value, 1000)
        self._chain.append(line)

    def close(self) -> None:
        """Let another process have the log."""
        self._hold.lock.release()
