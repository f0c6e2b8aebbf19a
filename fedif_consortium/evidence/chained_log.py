r"""A log whose lines are chained by hashes: a keeper's, and a member's node's.

.. math:: h_t = H(h_{t-1} \,\|\, \text{entry}_t), \qquad h_0 = H(\text{empty})

with SHA-256. Who knows the last hash notices any earlier line that was changed, added or removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping

from fedif_flower.errors import EvidenceError

START = hashlib.sha256(b"").hexdigest()


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

    def append(self, entry: Mapping[str, object]) -> None:
        """Add an entry, which JSON can write."""
        text = json.dumps(entry, separators=(",", ":"))
        head = _next(self.head, text)
        self._write(f"{head} {text}")
        self.head = head


def verified(
    lines: Iterable[str], name: str, head: str = START
) -> tuple[list[dict[str, object]], str]:
    """Return the entries of a log's lines, and the last hash.

    Parameters
    ----------
    lines : iterable of str
        As they were written.
    name : str
        What an error calls the log.
    head : str
        The hash of the line before the first.

    Raises
    ------
    EvidenceError
        Naming the first line that does not follow from the one before.
    """
    entries = []
    for number, line in enumerate(lines, 1):
        claimed, _, text = line.rstrip("\n").partition(" ")
        head = _next(head, text)
        if claimed != head:
            raise EvidenceError(f"line {number} of {name} does not follow from the others")
        entries.append(json.loads(text))
    return entries, head


def _next(head: str, text: str) -> str:
    return hashlib.sha256(f"{head} {text}".encode()).hexdigest()
