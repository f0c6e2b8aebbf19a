"""A SuperLink behind TLS, a run, and registered members that the test plays."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from threading import Lock
from typing import Self

import httpx
import psutil
from flwr.app import Message

from client_app import app
from fedif_flower.run.rows import read_rows
from tests.integration.deployed import REPOSITORY, Deployment
from tests.integration.protocol import Member, join

ROUNDS = 1000  # More than are ever played.
PAUSE = 0.2  # Between two looks: each costs the SuperLink some 10 ms.


class Played(Deployment):
    """A context manager: the run has been submitted once it is entered, and goes on without end.

    Parameters
    ----------
    directory : Path
        For everything.
    names : tuple of str
        The members.
    source : str, optional
        The address that members come from.
    proxy : bool
        Whether they come by nginx.
    **run
        Of the run config, instead of what it is here.
    """

    def __init__(
        self,
        directory: Path,
        names: tuple[str, ...],
        source: str | None = None,
        proxy: bool = False,
        **run: object,
    ) -> None:
        super().__init__(directory, proxy=proxy)
        self.names, self._source, self._run, self._training = names, source, run, Lock()
        self.members: dict[str, Member] = {}
        self.run_dir = self.server / "runs" / "played"

    def __enter__(self) -> Self:
        super().__enter__()
        with contextlib.ExitStack() as left:
            left.push(super().__exit__)
            self.start_superlink()
            for name in self.names:
                self.members[name] = join(self, name, self._source)
                left.callback(self.members[name].close)
            config = {
                "num-clients": len(self.names),
                "fraction-train": 1.0,
                "num-server-rounds": ROUNDS,
                "local-epochs": 1,
                "device": "cpu",
                "checkpoint-every": 0,
                "run-name": self.run_dir.name,
                "output-dir": str(self.run_dir.parent),
            }
            self.submit(REPOSITORY, config | self._run)
            self.begin(left)
            self._left = left.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def begin(self, left: contextlib.ExitStack) -> None:
        """Do more before it is entered; ``left`` is what is ended afterwards."""

    def asked(self, member: Member) -> Message | None:
        """Return what a member is asked to train, if it is; answer all else honestly."""
        with contextlib.suppress(httpx.HTTPError):
            message = member.next_message()
            if message is not None and message.metadata.message_type == "train":
                return message
            if message is not None:
                self.honest(member, message)
        return None

    def honest(self, member: Member, message: Message) -> None:
        """Answer as a SuperNode with this project's app does."""
        partition = list(self.members.values()).index(member)
        config = {"partition-id": partition, "num-partitions": len(self.members)}
        with self._training:  # Models are kept for the process, as a node has one.
            reply = app(message, member.context(message, config))
        with contextlib.suppress(httpx.HTTPError):
            member.send(reply)

    def seconds(self) -> list[float]:
        """Return how long each round took that is over."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return [float(r["round_seconds"]) for r in read_rows(self.run_dir / "rounds.csv")[1:]]
        return []

    def servers(self, *programs: str) -> list[int]:
        """Return the processes of the SuperLink or of other programs, and of nginx."""
        found = []
        for pid in self.marked.alive():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_text()
                words = programs or ("--enable-supernode-auth",)
                if "bash" not in command and any(word in command for word in words):
                    found.append(pid)
        assert found, "there is no SuperLink"
        return (
            [*found, *(p.pid for p in psutil.Process(self.nginx.pid).children())]
            if self.nginx
            else found
        )


def peak_of(pid: int) -> int:
    """Return the most bytes that a process has held in memory since its peak was reset."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024
