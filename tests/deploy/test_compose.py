"""The containers: what their files say, and what their commands do where there is no Docker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml

from fedif_consortium.health import serving_health
from fedif_flower.run.rows import read_rows
from tests.integration.deployed import free_port, search_path, wait_for
from tests.integration.watch import MarkedProcesses, if_killed, kill_marked

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "deploy" / "compose"
ENTRYPOINT = FOLDER / "entrypoint.sh"
needs_bash = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")


def compose(**given: str) -> dict:
    """Return the compose file as compose reads it where the environment has what is given."""
    text = (FOLDER / "compose.yml").read_text()
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: given.get(found[1], "") or found[2], text)
    assert "$" not in text
    return yaml.safe_load(text)


def services() -> dict[str, dict]:
    return compose()["services"]


def stages() -> dict[str, list[list[str]]]:
    """Return each stage's instructions by its name."""
    text = re.sub(r"^\s*#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.M)
    found: dict[str, list[list[str]]] = {}
    for words in map(str.split, re.sub(r"\\\n\s*", " ", text).splitlines()):
        if words[:1] == ["FROM"]:
            current = found.setdefault(words[3], [])
        elif found and words:
            current.append(words)
    return found


def copied(stage: str) -> list[tuple[list[str], str]]:
    """Return what a stage copies from the checkout, and where to."""
    found = []
    for words in stages()[stage]:
        if words[0] == "COPY" and not any(word.startswith("--from") for word in words):
            *sources, target = (word for word in words[1:] if not word.startswith("--"))
            found.append((sources, target))
    return found


def test_every_container_is_confined_and_runs_an_image_that_is_built_here():
    for service in services().values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "cap_add", "devices", "pid", "ipc", "userns_mode"} & set(service)
        assert not service["image"].endswith(":latest")
    built = {service["image"] for service in services().values() if "build" in service}
    assert {service["image"] for service in services().values()} == built


def test_each_part_gets_its_own_secrets_and_no_environment_has_one():
    for name, service in services().items():
        volumes = {volume.split(":")[0] for volume in service["volumes"]}
        if name != "setup":
            own = {"superlink": "federation", "server": "federation"}.get(name, name)
            assert volumes == {own}
        assert not re.search("SECRET|PASSWORD|TOKEN", " ".join(service["environment"]))


def test_only_the_superlink_has_a_port_and_that_on_loopback_unless_told_otherwise():
    with_ports = {name: s["ports"] for name, s in services().items() if "ports" in s}
    assert with_ports == {"superlink": ["127.0.0.1:9092:9092"]}
    told = compose(SUPERLINK_PUBLISHED="0.0.0.0:9092")["services"]["superlink"]["ports"]
    assert told == ["0.0.0.0:9092:9092"]


def test_the_context_is_what_is_copied_and_no_more():
    first, *kept = [
        line
        for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
        if line and not line.startswith(("#", "**/__pycache__"))
    ]
    assert first == "*"
    sources = {source for stage in ("build", "runtime") for s, _ in copied(stage) for source in s}
    assert {line.removeprefix("!") for line in kept} == sources
    assert all((REPOSITORY / source).exists() for source in sources)


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ENTRYPOINT, *arguments],
        env={"PATH": search_path(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_bash
def test_health_is_asked_for_by_url(tmp_path):
    home = {"HOME": str(tmp_path)}
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}/health"
    with serving_health("x", address):
        assert call("healthy", url, **home).returncode == 0
    assert call("healthy", url, **home).returncode == 1
    assert call("healthy", "--or-idle", url, **home).returncode == 0


class Containers:
    """The compose file's commands as processes of this machine, each where its container has it.

    Folders and the app's files are those of a directory; ports and hosts are those of loopback.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.services = compose()["services"]
        ports = {
            port: str(free_port())
            for port in ("9092", "9093", "9094", "9095", "9443", "9444", "9091")
        }
        self._replaced = {
            **{f"/{name}": str(directory / name) for name in ("federation", "keeper", "nodes")},
            "/app": str(directory / "app"),
            **ports,
        }
        for name in ("federation", "keeper", "nodes", "app"):
            (directory / name).mkdir(mode=0o700)
        for sources, target in copied("runtime"):
            self._copy(sources, target)
        self.marked = MarkedProcesses({})

    def _copy(self, sources: list[str], target: str) -> None:
        app = self.directory / "app"
        for source in sources:
            here, there = REPOSITORY / source, app / target
            if here.is_dir():
                shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
            elif target.endswith("/"):
                there.mkdir(exist_ok=True)
                shutil.copy(here, there)
            else:
                shutil.copy(here, self.directory / "entrypoint")

    def here(self, text: str) -> str:
        """Return a text of the compose file with this machine's paths, ports and hosts."""
        for name, value in self._replaced.items():
            text = re.sub(rf"(?<![\w/.]){name}\b", value, text)
        return "127.0.0.1" if text in ("keeper", "superlink") else text

    def environment(self, name: str) -> dict[str, str]:
        given = {key: self.here(value) for key, value in self.services[name]["environment"].items()}
        return {
            **self.marked.environment,
            "PATH": search_path(),
            "HOME": str(self.directory / "homes" / name),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            **given,
        }

    def exec(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.directory / "entrypoint", *map(self.here, command)],
            env=self.environment(name),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, name: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [self.directory / "entrypoint", *self.services[name]["command"]],
                env=self.environment(name),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_healthy(self, name: str) -> bool:
        _, program, *test = self.services[name]["healthcheck"]["test"]
        assert program == "entrypoint"
        return self.exec(name, *test).returncode == 0

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")


@contextlib.contextmanager
def containers(directory: Path) -> Iterator[Containers]:
    found = Containers(directory)
    with if_killed(kill_marked(found.marked.mark)):
        try:
            yield found
        finally:
            left = found.marked.terminate(grace=5.0)
            assert left == [], f"processes {left} could not be ended"


@needs_bash
@pytest.mark.skipif(not shutil.which("nginx"), reason="needs nginx")
@pytest.mark.deployment
@pytest.mark.all
@pytest.mark.timeout(1800)
def test_the_commands_of_the_containers_run_as_they_stand_in_a_clean_directory(tmp_path):
    with containers(tmp_path) as up:
        for _ in range(2):  # As at every `docker compose up`.
            done = up.exec("setup", *up.services["setup"]["command"])
            assert done.returncode == 0, done.stdout + done.stderr
        assert "kept" in done.stdout
        assert "made" not in done.stdout
        secrets = [*tmp_path.rglob("*.key"), *tmp_path.rglob("*.pem"), *tmp_path.rglob("box-key")]
        assert len(secrets) == 9
        assert not [path for path in secrets if path.stat().st_mode & 0o077]
        started = {}
        for name in ("keeper", "superlink", "server", "hospital-0"):
            started[name] = up.start(name)
            if name == "server":
                wait_for("members", lambda: "Starting Flower SuperExec" in up.log("server"), 300)
            else:
                wait_for(f"health of {name}", partial(up.is_healthy, name), 300, pause=1.0)
        assert up.is_healthy("server")  # There is no run.
        settings = "num-clients=1 fraction-train=1.0 num-server-rounds=1 local-epochs=1"
        more = 'device="cpu"', 'run-name="october"'
        run = up.exec("server", "run", *settings.split(), *more)
        assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:] + up.log("server")
        folder = tmp_path / "federation" / "runs" / "october"
        assert json.loads((folder / "summary.json").read_text())["config"]["metrics.port"] > 0
        assert [row["status"] for row in read_rows(folder / "clients.csv")] == ["accepted"]
        assert len(read_rows(folder / "signatures.csv")) == 1
        address = up.here("127.0.0.1:9093")
        answer = httpx.get(f"http://{address}/health", trust_env=False)
        assert "fedif_members_online 1.0" in answer.text
        for name in reversed(started):
            os.killpg(started[name].pid, signal.SIGTERM)
            started[name].wait(300)
