"""What tests start outlives them when they are killed, unless somebody watches."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def if_killed(script: str) -> Iterator[None]:
    """Have a shell run ``script`` if this process dies before the block ends, even by kill -9."""
    # The pipe closes with this process, whatever ended it.
    watcher = subprocess.Popen(
        ["sh", "-c", f"read -r left || {{ {script}; }}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.communicate(b"left\n")


def kill_marked(mark: str) -> str:
    """Return a script that kills every process with ``NAME=value`` in its environment."""
    found = f"grep -lszxF '{mark}' /proc/[0-9]*/environ"
    once = f"for found in $({found}); do kill -9 $(echo $found | cut -d/ -f3); done"
    # One that begins while it is looked for is found by the next look.
    return f"for turn in 1 2 3; do {once}; sleep 0.3; done"
