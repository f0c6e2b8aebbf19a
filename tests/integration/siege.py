"""Honest members train while strangers and a member with a registered key flood a SuperLink."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from tests.integration.deployed import HOST, REPOSITORY, wait_for
from tests.integration.played import PAUSE, Played, peak_of
from tests.integration.protocol import Member

HONEST = ("honest-a", "honest-b")
HOSTILE = "hostile"  # Whose key is abused; it answers honestly too, so that no round waits for it.
NODES_HOME = "127.0.0.3"
LIMITED = ("sh", "-c", 'ulimit -n 1024; exec "$@"', "limited")  # Of open files.


@dataclass
class Phase:
    """What became of the rounds while something was going on.

    ``seconds`` of each round; ``peak``, the most bytes that SuperLink and proxy held in memory;
    ``found``, what each attacker saw.
    """

    seconds: list[float] = field(default_factory=list)
    peak: int = 0
    found: dict[str, dict[str, int]] = field(default_factory=dict)


class Siege(Played):
    """A context manager: a SuperLink, a run without end, its members, and attacks beside it.

    Parameters
    ----------
    directory : Path
        For everything.
    guarded : bool
        Whether the SuperLink is this project's behind nginx, or Flower's own.
    """

    def __init__(self, directory: Path, guarded: bool = True) -> None:
        run = {"min-valid-replies": len(HONEST), "pace.timeout": 600.0}
        super().__init__(directory, (*HONEST, HOSTILE), NODES_HOME, guarded, **run)
        self._guarded = guarded

    def begin(self, left: ExitStack) -> None:
        stop = Event()
        for member in self.members.values():
            player = Thread(target=self._play, args=(member, stop))
            player.start()
            left.callback(player.join)
            left.callback(stop.set)
        wait_for("a round", lambda: len(self.seconds()) > 1, timeout=450.0, pause=PAUSE)

    def _play(self, member: Member, stop: Event) -> None:
        while not stop.wait(PAUSE):
            if (message := self.asked(member)) is not None:
                self.honest(member, message)

    def start_superlink(
        self, environment: Mapping[str, str] | None = None, prefix: tuple[str, ...] = LIMITED
    ) -> None:
        if self._guarded:
            super().start_superlink(environment, prefix)
            return
        certificate = {name: self.server / f"server.{name}" for name in ("crt", "key")}
        self.start(
            *("superlink", *prefix, "flower-superlink", "--enable-supernode-auth"),
            *("--host", HOST, "--port", self.port),
            *("--ssl-ca-certfile", self.server / "ca.crt"),
            *("--ssl-certfile", certificate["crt"], "--ssl-keyfile", certificate["key"]),
            *("--database", self.server / "superlink.db"),
            environment={
                "PYTHONPATH": str(REPOSITORY),
                "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            },
        )
        wait_for("SuperLink", lambda: "Uvicorn running" in self.log("superlink"))

    def phase(
        self, *attacks: str, seconds: float = 0.0, rounds: int = 0, timeout: float = 180.0
    ) -> Phase:
        """Let time pass and rounds be completed, beside some attacks.

        It ends once ``seconds`` have passed and ``rounds`` are over, or after ``timeout``.
        """
        servers = self.servers()
        for pid in servers:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # Its peak from here on.
        processes = {name: self._attack(name) for name in attacks}
        before, started = len(self.seconds()), time.monotonic()
        while (passed := time.monotonic() - started) < timeout and (
            passed < seconds or len(self.seconds()) - before < rounds
        ):
            time.sleep(PAUSE)
        phase = Phase(self.seconds()[before:], sum(map(peak_of, servers)))
        for name, process in processes.items():
            process.terminate()
            process.wait()
            phase.found[name] = json.loads(self.log(name).splitlines()[-1])
        return phase

    def _attack(self, name: str) -> subprocess.Popen[bytes]:
        """Begin an attack, and wait until its process has come so far."""

        def begun() -> int:
            return self.log(name).count("begins")

        before, key = begun(), self.key(HOSTILE)
        process = self.start(
            *(name, sys.executable, "-m", "tests.integration.strangers", name),
            *(self.address, key, self.members[HOSTILE].node_id),
            environment={"PYTHONPATH": str(REPOSITORY)},
        )
        wait_for(name, lambda: begun() > before, pause=PAUSE)
        return process
