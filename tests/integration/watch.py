"""What tests start outlives them when they are killed, unless somebody watches."""

from __future__ import annotations

import contextlib
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil


class MarkedProcesses:
    """Processes that carry one unique environment variable, whoever started them.

    Flower and Ray start helpers that detach from their parents and outlive them: neither the
    process tree nor a group has them all, but each inherits its environment.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        value = uuid.uuid4().hex
        self.mark = f"FEDIF_TEST_ID={value}"
        # Ray names its workers by setproctitle, which else overwrites /proc/<pid>/environ.
        self.environment = {**environment, "FEDIF_TEST_ID": value, "SPT_NOENV": "1"}

    def start(
        self, log: Path, *command: object, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own, which no Ctrl-C reaches; ``log`` grows."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*map(str, command)],
                cwd=cwd,
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def alive(self) -> list[int]:
        """Return the ids of the processes that carry the mark and have not ended."""
        return [process.pid for process in self._marked()]

    def terminate(self, grace: float = 3.0) -> list[int]:
        """End every one by SIGTERM, after some seconds by SIGKILL; return those that survived."""
        deadline = time.monotonic() + grace
        self._signal_all(psutil.Process.terminate)
        # A dying process may start another between two scans.
        while (survivors := self.alive()) and time.monotonic() < deadline + 2.0:
            if time.monotonic() > deadline:
                self._signal_all(psutil.Process.kill)
            time.sleep(0.1)
        return survivors

    def _signal_all(self, signal_one: Callable[[psutil.Process], None]) -> None:
        for process in self._marked():
            with contextlib.suppress(psutil.Error):
                signal_one(process)

    def _marked(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_marked(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        name, value = self.mark.split("=")
        try:
            ended = process.status() == psutil.STATUS_ZOMBIE
            return not ended and process.environ().get(name) == value
        except (psutil.Error, OSError):  # gone meanwhile, or another user's
            return False


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
