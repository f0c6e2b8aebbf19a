"""Peak memory of this process and of all that it started, Ray's included."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

_INTERVAL = 0.2


class MemoryWatch:
    """Samples proportional memory (PSS: pages that processes share count once) while entered.

    Attributes
    ----------
    driver, others, together : int
        Peak bytes of this process, of its descendants, and of both at one time. Ray's object store
        lies in the pages its processes share.
    """

    def __init__(self) -> None:
        self.driver = self.others = self.together = 0
        self._stop = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL):
            driver = proportional_memory(os.getpid())
            others = sum(map(proportional_memory, descendants(os.getpid())))
            self.driver = max(self.driver, driver)
            self.others = max(self.others, others)
            self.together = max(self.together, driver + others)


def proportional_memory(pid: int) -> int:
    """Return a process's PSS in bytes; 0 if it has just ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children and so on."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name in parentheses may hold spaces; the parent is the second field after it.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for ancestor in found:
        found.extend(child for child, parent in parents.items() if parent == ancestor)
    return found[1:]
