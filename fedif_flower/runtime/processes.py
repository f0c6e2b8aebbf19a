"""The processes of one launch: found by a mark in their environment, ended together.

Flower and Ray start helpers that detach from their parents and outlive them, so neither the process
tree nor a process group finds them all. Every one of them inherits its environment, though.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO


class MarkedProcesses:
    """Processes that carry one unique environment variable, whoever started them.

    Parameters
    ----------
    environment : Mapping[str, str]
        Environment of every process started here; the mark is added to it.
    variable : str
        Name of the variable whose unique value is the mark.
    """

    def __init__(
        self, environment: Mapping[str, str], *, variable: str = "FEDIF_LAUNCH_ID"
    ) -> None:
        value = uuid.uuid4().hex
        self.mark = f"{variable}={value}"
        # Ray names its workers by setproctitle, which else overwrites /proc/<pid>/environ.
        self.environment = {**environment, variable: value, "SPT_NOENV": "1"}

    def start(
        self, command: Sequence[str], *, cwd: Path, output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own: Ctrl-C must reach only the launcher.

        Parameters
        ----------
        command : Sequence[str]
            Program and arguments; no shell.
        cwd : Path
            Its working directory.
        output : IO[bytes]
            Open file that receives stdout and stderr.

        Returns
        -------
        subprocess.Popen[bytes]
            The running process.
        """
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def alive(self) -> list[int]:
        """Return the ids of the processes that carry the mark and have not ended."""
        if Path("/proc/self/environ").exists():
            return _marked_in_proc(self.mark.encode())
        return _marked_in_ps(self.mark)

    def terminate(self, grace: float = 3.0) -> list[int]:
        """End every marked process: SIGTERM, then SIGKILL to what is left.

        Parameters
        ----------
        grace : float
            Seconds, >= 0, between the two signals.

        Returns
        -------
        list[int]
            Processes that survived even SIGKILL; empty unless the kernel holds one.
        """
        _signal_all(self.alive(), signal.SIGTERM)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:
            if not self.alive():
                return []
            time.sleep(0.1)
        # A dying process may have started another between two scans.
        for _ in range(20):
            survivors = self.alive()
            if not survivors:
                return []
            _signal_all(survivors, signal.SIGKILL)
            time.sleep(0.1)
        return self.alive()


class StopRequest:
    """Remembers a signal that asks for an end, so that nothing is interrupted halfway.

    A context manager; inside it SIGINT, SIGTERM and SIGHUP only set :attr:`signal_number`.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __enter__(self) -> StopRequest:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._previous = {number: signal.signal(number, self._remember) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.signal_number = number


def available_cpus() -> int:
    """Return how many CPUs this process may use: affinity and container quota respected."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _marked_in_proc(mark: bytes) -> list[int]:
    found = []
    for directory in Path("/proc").iterdir():
        # Gone meanwhile, or another user's. A zombie's environment reads as empty.
        with contextlib.suppress(OSError):
            if directory.name.isdigit() and mark in (directory / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(directory.name))
    return found


def _marked_in_ps(mark: str) -> list[int]:
    # BSD syntax, the same on macOS: `e` prints the environment after the command.
    listing = subprocess.run(
        ["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=True
    ).stdout
    return [int(line.split(None, 1)[0]) for line in listing.splitlines() if mark in line.split()]
