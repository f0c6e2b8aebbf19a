"""What Flower's users try first: ``flwr run . --stream``, in a fresh copy and a home of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.processes import MarkedProcesses
from tests.integration.deployed import REPOSITORY, free_port, search_path
from tests.integration.watch import if_killed, kill_marked

ROUNDS = 3
COMMAND = ("flwr", "run", ".", "--stream")
TREE = ("pyproject.toml", "README.md", "LICENSE", "server_app.py", "client_app.py", "fedif_flower")


class Copy:
    """The files of a clone that Flower reads, with fewer rounds, and a user who begins with it."""

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "fedif-flower"
        self.tree.mkdir()
        for name in TREE:
            path = REPOSITORY / name
            if path.is_dir():
                unwanted = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, self.tree / name, ignore=unwanted)
            else:
                shutil.copy(path, self.tree)
        manifest = self.tree / "pyproject.toml"
        text, changed = re.subn(
            r"(?m)^num-server-rounds = \d+$", f"num-server-rounds = {ROUNDS}", manifest.read_text()
        )
        assert changed == 1
        manifest.write_text(text)
        self.home = directory / "home"
        self.home.mkdir()
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "XDG_", "RAY_"))}
        ours.pop("PYTHONPATH", None)
        self.marked = MarkedProcesses(
            {
                **ours,
                "PATH": search_path(),
                "HOME": str(self.home),
                # As the README says; all of it would be installed again otherwise.
                "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
                "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
                "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "PYTHONUNBUFFERED": "1",
            },
            variable="FEDIF_TEST_ID",
        )

    def call(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Give a command; again where Flower's own 15 s for its SuperLink's start were too few."""
        for _ in range(4):
            result = subprocess.run(
                command,
                cwd=self.tree,
                env={**self.marked.environment, **environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            if "start local SuperLink within" not in result.stdout + result.stderr:
                break
        return result

    def results(self) -> list[Path]:
        return list((self.tree / "runs").glob("*"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    found = Copy(tmp_path_factory.mktemp("clone"))
    with if_killed(kill_marked(found.marked.mark)):
        yield found
        # The SuperLink that `flwr run` started would stay.
        assert found.marked.terminate() == []


@pytest.mark.ray
def test_it_runs_with_the_nodes_that_flower_simulates(copy: Copy) -> None:
    result = copy.call(*COMMAND)
    printed = result.stdout + result.stderr
    assert result.returncode == 0, printed[-3000:]
    line = "num-clients = 2: the nodes that are simulated, 1 of them in a round; for more: "
    assert printed.count(f'fedif INFO: {line}--federation-config "num-supernodes=100"\n') == 1
    for server_round in range(ROUNDS + 1):
        assert f"fedif INFO: round {server_round}: test accuracy" in printed
    (run_dir,) = copy.results()
    assert len(read_rows(run_dir / "rounds.csv")) == ROUNDS + 1
    assert json.loads((run_dir / "summary.json").read_text())["rounds"] == ROUNDS
    assert f"fedif INFO: Report: {run_dir / 'report.md'}\n" in printed
    assert "## Members" in (run_dir / "report.md").read_text()


@pytest.mark.ray
def test_more_clients_than_are_simulated_end_it_at_once(copy: Copy) -> None:
    before = copy.results()
    printed = copy.call(*COMMAND, "--run-config", "num-clients=100").stdout
    ways = 'set num-clients = 2, or simulate 100 nodes by --federation-config "num-supernodes=100"'
    assert f"ConfigError: num-clients = 100, but 2 nodes are simulated: {ways}" in printed
    assert "fedif INFO: round 0" not in printed
    assert copy.results() == before
    listed = copy.call("flwr", "list", "--format", "json").stdout
    statuses = {run["status"] for run in json.loads(listed)["runs"]}
    assert "finished:failed" in statuses


@pytest.mark.ray
def test_it_needs_the_environment_s_programs_on_the_path(copy: Copy) -> None:
    """Flower finds its SuperLink by name: why the README says to activate the environment."""
    flwr = str(Path(sysconfig.get_path("scripts")) / "flwr")
    elsewhere = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()), "PATH": os.defpath}
    if shutil.which("flower-superlink", path=os.defpath):
        pytest.skip("Flower is installed for everyone here")
    assert copy.call(flwr, *COMMAND[1:], **elsewhere).returncode != 0
