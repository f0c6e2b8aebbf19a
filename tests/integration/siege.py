"""A federation of two honest members over TLS that goes on learning while its port is attacked."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, cast

import httpx
import psutil
from flwr.supernode.fleet_http_client import FleetHttpClient

from client_app import app
from fedif_flower.run.rows import read_rows
from tests.integration.deployed import REPOSITORY, Deployment, wait_for
from tests.integration.protocol import Member, join

HONEST = ("honest-a", "honest-b")
HOSTILE = "hostile"
HOME = "127.0.0.1"
NODES_HOME, ATTACKERS_HOME = "127.0.0.3", "127.0.0.2"
ROUNDS = 1000  # More than are ever played.
ENDLESS = 3600.0
GIVE_UP = 60.0
PAUSE = 0.2  # Between two looks: each costs the SuperLink some 10 ms.


@dataclass
class Phase:
    """What became of the rounds while something was going on.

    ``seconds`` of each round; ``peak``, the most bytes that SuperLink and proxy held in memory;
    ``found``, what each attacker saw.
    """

    seconds: list[float] = field(default_factory=list)
    peak: int = 0
    found: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def usual(self) -> float:
        return statistics.median(self.seconds) if self.seconds else float("inf")


class Patient:
    """A client that sends a request again where it was refused for its number.

    The one whose key is abused answers honestly too, so that no round waits for it.
    """

    def __init__(self, client: FleetHttpClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def again(*arguments: Any) -> Any:
            until = time.monotonic() + GIVE_UP
            while True:
                try:
                    return method(*arguments)
                except httpx.HTTPStatusError as error:
                    if error.response.status_code not in (429, 503) or time.monotonic() > until:
                        raise
                except httpx.TransportError:  # A SuperNode begins anew, too.
                    if time.monotonic() > until:
                        raise
                time.sleep(PAUSE)

        return again


class Siege:
    """A context manager: a SuperLink, a run without end, its members, and attacks beside it.

    Parameters
    ----------
    directory : Path
        For everything.
    guarded : bool
        Whether the SuperLink is this project's behind nginx, or Flower's own.
    descriptors : int
        Its limit of open files.
    """

    def __init__(self, directory: Path, guarded: bool = True, descriptors: int = 1024) -> None:
        self.deployment = Deployment(directory, proxy=guarded)
        self._guarded = guarded
        self._descriptors = descriptors
        self._stop = Event()
        self._training = Lock()
        self._players: list[Thread] = []
        self.members: dict[str, Member] = {}

    def __enter__(self) -> Siege:
        self.deployment.__enter__()
        try:
            self._start()
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

    def _start(self) -> None:
        self._start_superlink()
        for name in (*HONEST, HOSTILE):
            self.members[name] = member = join(self.deployment, name, NODES_HOME)
            member.client = cast(FleetHttpClient, Patient(member.client))
        self.hostile_key = self.deployment.key(HOSTILE)
        self.run_dir = self.deployment.server / "runs" / "siege"
        self.deployment.submit(
            REPOSITORY,
            {
                "num-clients": len(HONEST) + 1,
                "fraction-train": 1.0,
                "min-valid-replies": len(HONEST),
                "num-server-rounds": ROUNDS,
                "local-epochs": 1,
                "pace.timeout": 600.0,
                "run-name": "siege",
                "device": "cpu",
                "checkpoint-every": 0,
                "output-dir": str(self.run_dir.parent),
            },
        )
        for name in self.members:
            self._players.append(Thread(target=self._play, args=(name,), daemon=True))
            self._players[-1].start()
        wait_for("a round", lambda: len(self._seconds()) > 1, timeout=450.0, pause=PAUSE)

    def _start_superlink(self) -> None:
        limited = ("sh", "-c", f'ulimit -n {self._descriptors}; exec "$@"', "limited")
        if self._guarded:
            self.deployment.prefix = limited
            self.deployment.start_superlink()
            self.deployment.prefix = ()
            return
        certificate = {name: self.deployment.server / f"server.{name}" for name in ("crt", "key")}
        self.deployment.start(
            *("superlink", *limited, "flower-superlink", "--enable-supernode-auth"),
            *("--host", HOME, "--port", self.deployment.port),
            *("--ssl-ca-certfile", self.deployment.server / "ca.crt"),
            *("--ssl-certfile", certificate["crt"], "--ssl-keyfile", certificate["key"]),
            *("--database", self.deployment.server / "superlink.db"),
            environment={
                "PYTHONPATH": str(REPOSITORY),
                "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            },
        )
        wait_for("SuperLink", lambda: "Uvicorn running" in self.deployment.log("superlink"))

    def _play(self, name: str) -> None:
        """Answer honestly until the end; the one whose key is abused does too."""
        member = self.members[name]
        config = {"partition-id": list(self.members).index(name), "num-partitions": 3}
        while not self._stop.wait(PAUSE):
            with contextlib.suppress(httpx.HTTPError, AssertionError):
                message = member.next_message()
                if message is None:
                    continue
                with self._training:  # Models are kept for the process, as a node has one.
                    reply = app(message, member.context(message, config))
                member.send(reply)

    def _seconds(self) -> list[float]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return [float(r["round_seconds"]) for r in read_rows(self.run_dir / "rounds.csv")[1:]]
        return []

    def phase(
        self, *attacks: str, seconds: float = 0.0, rounds: int = 0, timeout: float = 180.0
    ) -> Phase:
        """Let time pass and rounds be completed, beside some attacks.

        It ends once ``seconds`` have passed and ``rounds`` are over, or after ``timeout``.
        """
        servers = self._servers()
        for pid in servers:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # Its peak from here on.
        processes = {name: self._attack(name) for name in attacks}
        before, started = len(self._seconds()), time.monotonic()
        while (passed := time.monotonic() - started) < timeout and (
            passed < seconds or len(self._seconds()) - before < rounds
        ):
            time.sleep(PAUSE)
        phase = Phase(self._seconds()[before:], sum(map(peak_of, servers)))
        for name, process in processes.items():
            process.terminate()
            process.wait()
            phase.found[name] = json.loads(self.deployment.log(name).splitlines()[-1])
        return phase

    def _attack(self, name: str) -> subprocess.Popen[bytes]:
        """Begin an attack, and wait until its process has come so far."""

        def begun() -> int:
            return self.deployment.log(name).count("begins")

        before = begun()
        process = self.deployment.start(
            *(name, sys.executable, "-m", "tests.integration.strangers", name),
            *(self.deployment.address, ENDLESS, ATTACKERS_HOME),
            *((self.hostile_key, self.members[HOSTILE].node_id) if "member" in name else ()),
            environment={"PYTHONPATH": str(REPOSITORY)},
        )
        wait_for(name, lambda: begun() > before, pause=PAUSE)
        return process

    def _servers(self) -> list[int]:
        """Return the processes of the SuperLink and of nginx."""
        nginx = self.deployment.nginx
        proxies = [p.pid for p in psutil.Process(nginx.pid).children()] if nginx else []
        for pid in self.deployment.marked.alive():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"--enable-supernode-auth" in command and b"bash" not in command:
                    return [pid, *proxies]
        raise AssertionError("there is no SuperLink")


def peak_of(pid: int) -> int:
    """Return the most bytes that a process has held in memory since its peak was reset."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024
