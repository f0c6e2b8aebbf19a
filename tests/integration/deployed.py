"""A federation of real processes on loopback, started by the commands that operators use."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.integration.warm import warm
from tests.integration.watch import MarkedProcesses, if_killed, kill_marked

REPOSITORY = Path(__file__).parents[2]
NAME, HOST = "test", "127.0.0.1"
# So many times as long as usual, on a machine that has much else to do.
PATIENCE = float(os.environ.get("FEDIF_TEST_PATIENCE", "3"))
marks = [pytest.mark.deployment]  # For the modules that use this.


def search_path() -> str:
    """Return a search path on which this environment's Flower comes first."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def wait_for(
    what: str, condition: Callable[[], object], timeout: float = 120.0, pause: float = 0.1
) -> object:
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout:g} s"
        time.sleep(pause)
    return found


class Deployment:
    """A context manager: certificates, a SuperLink, SuperNodes; no process after it.

    Everything lies in ``directory``. ``proxy``: members come by nginx. ``quick``: short programs
    are forks of a warm one.
    """

    def __init__(
        self,
        directory: Path,
        quick: bool = False,
        proxy: bool = False,
    ) -> None:
        self.directory = directory
        self.quick = quick
        self.path = search_path()
        self.port = free_port()
        self.proxy = ("--superlink", f"{HOST}:{free_port()}") if proxy else ("--no-proxy",)
        self.nginx: subprocess.Popen[bytes] | None = None
        self.server = directory / "server"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.node_ids: dict[str, int] = {}
        self.superlink: subprocess.Popen[bytes] | None = None
        self.marked = MarkedProcesses(
            {
                **os.environ,
                "PATH": self.path,
                "HOME": str(directory),
                "FLWR_HOME": str(directory / "flower"),
                "XDG_CACHE_HOME": str(directory / "cache"),
                "CUDA_VISIBLE_DEVICES": "",
                "NO_PROXY": HOST,
                "no_proxy": HOST,
            },
        )
        self._watch = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._watch.enter_context(if_killed(kill_marked(self.marked.mark)))
        if self.quick:
            programs = warm(self.directory / "warm", self.marked.environment)
            self.path = f"{self._watch.enter_context(programs)}{os.pathsep}{self.path}"
        self.federation("init", NAME, HOST, "--listen", self.address, *self.proxy)
        return self

    def __exit__(self, *_: object) -> None:
        # SuperNodes first: a SuperLink that is gone makes them retry for a minute.
        for node in self.nodes.values():
            node.terminate()
        if self.nginx is not None:
            self.nginx.terminate()
            self.nginx.wait()
        left = self.marked.terminate(grace=5.0)
        self._watch.close()
        assert left == [], f"processes {left} could not be ended"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def federation(
        self, *arguments: object, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Call ``fedif federation`` for this one."""
        return self.call("fedif", "federation", *arguments, "--in", self.server, check=check)

    def node_folder(self, name: str) -> Path:
        return self.directory / "nodes" / name

    def key(self, name: str) -> Path:
        """Return a member's private key."""
        return self.node_folder(name) / "node.key"

    def join(self, **configs: str) -> None:
        """Invite members, let their hosts answer, and register their keys.

        Each is given by its name, with what its node says of itself.
        """
        answers = []
        for name, config in configs.items():
            self.federation("invite", name)
            invitation = self.server / "invitations" / f"{name}.invitation.toml"
            folder = self.node_folder(name)
            self.call(
                "fedif", "node", "join", invitation, "--in", folder, "-c", config, "--no-check"
            )
            answers.append(folder / f"{name}.answer.toml")
        self.federation("add-member", *answers)
        for name in configs:
            record = tomllib.loads((self.server / "members" / f"{name}.toml").read_text())
            self.node_ids[name] = int(record["node-id"])

    def flwr(self, *arguments: object) -> str:
        return self.call("flwr", *arguments).stdout

    def call(self, *command: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [*map(str, command)],
            env={**self.marked.environment, "PATH": self.path},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0 or not check, result.stdout + result.stderr
        return result

    def start(
        self,
        log: str,
        *command: object,
        environment: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a command in the background; what it prints goes to ``<log>.log``."""
        program, *words = map(str, command)
        found = shutil.which(program, path=search_path()) or program
        return self.marked.start(
            *(self.directory / f"{log}.log", *prefix, found, *words),
            cwd=self.directory,
            environment=environment,
        )

    def log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start_superlink(
        self, environment: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> None:
        """Start the SuperLink, ``prefix`` before its words, and the proxy before it."""

        def starts() -> int:
            return self.log("superlink").count("Uvicorn running")

        before = starts()
        self.superlink = self.start(
            *("superlink", "fedif", "federation", "superlink", "--in", self.server),
            environment=environment,
            prefix=prefix,
        )
        wait_for("SuperLink", lambda: starts() > before)
        if "--superlink" in self.proxy and self.nginx is None:
            self.start_nginx()

    def start_nginx(self) -> None:
        words = ("-e", "stderr", "-p", self.server / "nginx", "-c", "nginx.conf")
        self.nginx = self.start("nginx", "nginx", *words)
        wait_for("nginx", lambda: is_open(self.port))

    def kill_superlink(self) -> None:
        """Kill the SuperLink and the processes of its runs at once, as a host that goes down does.

        Flower gives these a session of their own: one that outlived its SuperLink might save
        another checkpoint, and would hold its run's folder.
        """
        assert self.superlink is not None
        helpers = psutil.Process(self.superlink.pid).children(recursive=True)
        kill_group(self.superlink)
        for helper in helpers:
            with contextlib.suppress(psutil.NoSuchProcess):
                helper.kill()
        ids = {helper.pid for helper in helpers}
        wait_for("the end of its apps", lambda: ids.isdisjoint(self.marked.alive()))

    def submit(self, app: Path, run_config: Mapping[str, object]) -> int:
        """Start a run and return its id."""
        path = self.directory / "run-config.toml"
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in run_config.items()))
        output = self.flwr("run", app, NAME, "--format", "json", "--run-config", path)
        return int(json.loads(output)["run-id"])

    def outcome(self, run_id: int, timeout: float = 600.0) -> tuple[str, str]:
        """Wait for a run's end; return its status and details."""
        # Each of Flower's commands costs two seconds of a processor; the log is read for nothing.
        end = re.compile(rf"Finished task \d+ of run {run_id}\b")
        wait_for(f"end of run {run_id}", lambda: end.search(self.log("superlink")), timeout)
        [run] = json.loads(self.flwr("list", NAME, "--run-id", run_id, "--format", "json"))["runs"]
        return run["status"], run["status-details"]


def write_app(folder: Path, client_app: str | None = None) -> Path:
    """Write an app of two files, which import this package from where it is installed."""
    folder.mkdir()
    for name in ("README.md", "LICENSE", "server_app.py", "client_app.py"):
        shutil.copy(REPOSITORY / name, folder)
    if client_app is not None:
        (folder / "client_app.py").write_text(client_app)
    text = (REPOSITORY / "pyproject.toml").read_text()
    included = "fab-include = ['/*_app.py', '/LICENSE', '/README.md']"
    text = re.sub(r"^fab-include = .*\nfab-exclude = .*", included, text, count=1, flags=re.M)
    (folder / "pyproject.toml").write_text(text)
    return folder


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and the helpers that share its session, without warning."""
    os.killpg(process.pid, 9)
    process.wait()
