"""The processes of one launch: found by a mark in their environment, ended together.

Flower and Ray start helpers that detach from their parents and outlive them, so neither the process
tree nor a process group finds them all. Every one of them inherits its environment, though.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import psutil


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
        return [process.pid for process in self._marked()]

    def terminate(self, grace: float = 3.0, *, first: str = "") -> list[int]:
        """End every marked process: SIGTERM, then SIGKILL to what is left.

        Parameters
        ----------
        grace : float
            Seconds, >= 0, between the two signals.
        first : str
            Name of a program that is killed before any other process is signalled; else it may
            see the others end, and act on that.

        Returns
        -------
        list[int]
            Processes that survived even SIGKILL; empty unless the kernel holds one.
        """
        leading = [process for process in self._marked() if first and _runs(process, first)]
        _signal_all(leading, psutil.Process.kill)
        psutil.wait_procs(leading, timeout=grace)
        deadline = time.monotonic() + grace
        _signal_all(self._marked(), psutil.Process.terminate)
        # A dying process may start another between two scans.
        while (survivors := self._marked()) and time.monotonic() < deadline + 2.0:
            if time.monotonic() > deadline:
                _signal_all(survivors, psutil.Process.kill)
            time.sleep(0.1)
        return [process.pid for process in survivors]

    def _marked(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_marked(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        variable, value = self.mark.split("=")
        try:
            ended = process.status() == psutil.STATUS_ZOMBIE
            return not ended and process.environ().get(variable) == value
        except (psutil.Error, OSError):  # gone meanwhile, or another user's
            return False


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


def own_command(*more: str) -> str:
    """Return the command line of this process, with more arguments, as a shell takes it."""
    python, *arguments = sys.orig_argv
    if arguments and os.access(arguments[0], os.X_OK):  # A script that names its interpreter.
        script, *arguments = arguments
        name = Path(script).name
        return shlex.join([name if shutil.which(name) == script else script, *arguments, *more])
    return shlex.join([python, *arguments, *more])


def available_cpus() -> int:
    """Return how many CPUs this process may use: affinity and container quota respected."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def _runs(process: psutil.Process, program: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(Path(argument).name == program for argument in process.cmdline()[:2])
    return False


def _signal_all(
    processes: Sequence[psutil.Process], signal_one: Callable[[psutil.Process], None]
) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            signal_one(process)
