from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedif_flower.runtime.processes import MarkedProcesses, StopRequest

SLEEP = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(flush=True); time.sleep(60)"
)
# Starts a detached grandchild, prints its id and ends: nothing but the mark links it to us.
ORPHAN = (
    "import subprocess, sys; "
    f"print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True).pid)"
)


@pytest.fixture
def marked() -> Iterator[MarkedProcesses]:
    group = MarkedProcesses(os.environ)
    yield group
    group.terminate(grace=0.0)


def start(group: MarkedProcesses, code: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return group.start([sys.executable, "-c", code], cwd=output.parent, output=file)


def wait_for_output(path: Path) -> str:
    deadline = time.monotonic() + 30
    while not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline, "the process printed nothing"
        time.sleep(0.01)
    return path.read_text()


def test_detached_grandchild_is_found_and_ended(marked: MarkedProcesses, tmp_path: Path) -> None:
    parent = start(marked, ORPHAN, tmp_path / "output")
    parent.wait(timeout=30)
    orphan = int(wait_for_output(tmp_path / "output"))
    assert marked.alive() == [orphan]
    assert marked.terminate() == []
    assert marked.alive() == []


def test_process_that_ignores_sigterm_is_killed(marked: MarkedProcesses, tmp_path: Path) -> None:
    process = start(marked, STUBBORN, tmp_path / "output")
    wait_for_output(tmp_path / "output")
    assert marked.terminate(grace=0.2) == []
    assert process.wait(timeout=30) == -signal.SIGKILL


def test_one_program_is_gone_before_another_is_told_to_end(
    marked: MarkedProcesses, tmp_path: Path
) -> None:
    program = tmp_path / "server"
    program.write_text(f"print(flush=True); {SLEEP}")
    with (tmp_path / "printed").open("wb") as file:
        server = marked.start([sys.executable, str(program)], cwd=tmp_path, output=file)
    wait_for_output(tmp_path / "printed")
    tells = (
        "import psutil, signal, sys, time; "
        f"ended = lambda *_: sys.exit(psutil.pid_exists({server.pid})); "
        "signal.signal(signal.SIGTERM, ended); print(flush=True); time.sleep(60)"
    )
    client = start(marked, tells, tmp_path / "output")
    wait_for_output(tmp_path / "output")
    assert marked.terminate(grace=30.0, first="server") == []
    assert client.wait(timeout=30) == 0


def test_others_are_left_alone(marked: MarkedProcesses, tmp_path: Path) -> None:
    other = MarkedProcesses(os.environ)
    process = start(other, SLEEP, tmp_path / "output")
    try:
        marked.terminate(grace=0.0)
        assert process.poll() is None
        assert other.alive() == [process.pid]
    finally:
        other.terminate(grace=0.0)


def test_stop_request_remembers_the_signal_and_restores_handlers() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        assert stop.signal_number is None
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal_number == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
