"""A SuperLink behind TLS, a run, and registered members that the test plays, each in a thread."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Self

import httpx
import psutil
from flwr.app import Message

from client_app import app
from fedif_flower.run.rows import read_rows
from tests.integration.deployed import REPOSITORY, Deployment, wait_for
from tests.integration.protocol import Member, join

ROUNDS = 1000  # More than are ever played.
PAUSE = 0.2  # Between two looks: each costs the SuperLink some 10 ms.
Answer = Callable[[Member, Message], None]


class Played:
    """A context manager: the run goes on, without end, once it has been entered.

    Parameters
    ----------
    deployment : Deployment
        Entered with this one.
    names : tuple of str
        The members.
    answers : mapping of str to callable
        How a member answers a message that asks it to train, if not honestly.
    source : str, optional
        The address that members come from.
    **run
        Of the run config, instead of what it is here.
    """

    def __init__(
        self,
        deployment: Deployment,
        names: tuple[str, ...],
        answers: Mapping[str, Answer] | None = None,
        source: str | None = None,
        **run: object,
    ) -> None:
        self.deployment, self.names = deployment, names
        self._answers, self._source, self._run = answers or {}, source, run
        self._stop, self._training = Event(), Lock()
        self._players: list[Thread] = []
        self.members: dict[str, Member] = {}
        self.run_dir = deployment.server / "runs" / "played"

    def __enter__(self) -> Self:
        self.deployment.__enter__()
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for player in self._players:
            player.join(30.0)
        for member in self.members.values():
            member.close()
        self.deployment.__exit__()

    def start_superlink(self) -> None:
        self.deployment.start_superlink()

    def join(self, name: str) -> Member:
        return join(self.deployment, name, self._source)

    def _begin(self) -> None:
        self.start_superlink()
        self.members = {name: self.join(name) for name in self.names}
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
        self.deployment.submit(REPOSITORY, config | self._run)
        for name in self.members:
            self._players.append(Thread(target=self._play, args=(name,), daemon=True))
            self._players[-1].start()
        wait_for("a round", lambda: len(self.seconds()) > 1, timeout=450.0, pause=PAUSE)

    def _play(self, name: str) -> None:
        member, answer = self.members[name], self._answers.get(name, self.honest)
        while not self._stop.wait(PAUSE):
            with contextlib.suppress(httpx.HTTPError, AssertionError):
                message = member.next_message()
                if message is not None:
                    is_round = message.metadata.message_type == "train"
                    (answer if is_round else self.honest)(member, message)

    def honest(self, member: Member, message: Message) -> None:
        """Answer as a SuperNode with this project's app does."""
        partition = list(self.members.values()).index(member)
        config = {"partition-id": partition, "num-partitions": len(self.members)}
        with self._training:  # Models are kept for the process, as a node has one.
            reply = app(message, member.context(message, config))
        member.send(reply)

    def seconds(self) -> list[float]:
        """Return how long each round took that is over."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return [float(r["round_seconds"]) for r in read_rows(self.run_dir / "rounds.csv")[1:]]
        return []

    def servers(self, *programs: str) -> list[int]:
        """Return the processes of the SuperLink or of other programs, and of nginx."""
        nginx, found = self.deployment.nginx, []
        for pid in self.deployment.marked.alive():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_text()
                words = programs or ("--enable-supernode-auth",)
                if "bash" not in command and any(word in command for word in words):
                    found.append(pid)
        assert found, "there is no SuperLink"
        return [*found, *(p.pid for p in psutil.Process(nginx.pid).children())] if nginx else found


def peak_of(pid: int) -> int:
    """Return the most bytes that a process has held in memory since its peak was reset."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024
