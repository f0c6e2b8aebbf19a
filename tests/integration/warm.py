"""Short-lived programs that begin as copies of a process which has imported what they need.

A federation starts a program for every message and every look at it, and importing PyTorch and
Flower takes each two to three seconds of a processor. Here one process imports both; a program of
the same name as Flower's asks it for a fork, which is given the program's arguments, environment,
folder and output, and does what the program does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

# Not those that are killed by tests, or start others: these are as everybody has them.
PROGRAMS = {
    "flwr-clientapp": "flwr.supernode.cli.flwr_clientapp:flwr_clientapp",
    "flower-superexec": "flwr.supercore.cli.flower_superexec:flower_superexec",
    "flwr": "flwr.cli.app:app",
    "fedif": "fedif_studies.start:main",
}
IMPORTED = ("torch", "fedif_flower.client.preflight", "fedif_flower.apps")
LENGTH = 1 << 20
PROGRAM = """\
#!{python} -S
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    words = json.dumps([{entry!r}, os.getcwd(), dict(os.environ), sys.argv])
    socket.send_fds(asked, [words.encode()], [0, 1, 2])
    sys.exit(ord(asked.recv(1) or b"\\1"))
"""


@contextmanager
def warm(folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Start the process; yield a folder with the programs, to be the first of a search path."""
    folder.mkdir()
    # A socket's name has a hundred characters at most.
    scratch = tempfile.TemporaryDirectory(prefix="fedif-")
    address = f"{scratch.name}/socket"
    for name, entry in PROGRAMS.items():
        text = PROGRAM.format(python=sys.executable, address=address, entry=entry)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    command = [sys.executable, "-m", __name__, address]
    with scratch, socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        given = {"stdin": server.fileno(), "env": dict(environment), "start_new_session": True}
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2], **given)
        try:
            yield folder
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Fork for everybody who asks at the socket that is the standard input."""
    for name in (*IMPORTED, *(entry.partition(":")[0] for entry in PROGRAMS.values())):
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(fileno=0)
    while True:
        asked, _ = server.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _serve(asked)
        asked.close()


def _serve(asked: socket.socket) -> None:
    """Become the program in one more fork; tell its exit status."""
    words, files, *_ = socket.recv_fds(asked, LENGTH, 3)
    entry, folder, environment, arguments = json.loads(words)
    if program := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        with suppress(OSError):  # Whoever asked may be gone.
            asked.send(bytes([status & 255]))
        os._exit(0)
    asked.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = arguments
    random.seed()
    module, _, name = entry.partition(":")
    getattr(import_module(module), name)()
    sys.exit()


if __name__ == "__main__":
    main()
