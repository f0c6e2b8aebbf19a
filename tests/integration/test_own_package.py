"""A task, an attack and a strategy of a package that is no part of this project, through each door.

The package is what ``fedif new`` writes, with an attack and a strategy added, installed with pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_superlink import LocalSuperLink
from fedif_flower.scaffold import write_app
from tests.integration.deployed import REPOSITORY, Deployment

pytestmark = pytest.mark.all
PACKAGE = "out_there"
SMALL = {"num-clients": 2, "fraction-train": 1.0, "num-server-rounds": 2, "learning-rate": 0.1}

EXTRAS = '''
"""An attack and a strategy."""

import logging

from fedif_flower.attacks import Behaviour
from fedif_flower.round import Aggregation
from fedif_flower.strategies import ScreenedStrategy


class Rotate(Behaviour):
    """Every label becomes the next class."""

    def __init__(self, ratio):
        self.ratio = ratio

    def poison_labels(self, labels, num_classes, generator):
        logging.getLogger("fedif_flower").warning("rotating labels out there")
        return (labels + 1) % num_classes


class SmallestLoss(ScreenedStrategy):
    """Take the update after which the validation loss is least."""

    def __init__(self, validation, *flower, **base):
        super().__init__(*flower, **base)
        self.validation = validation

    def weigh(self, updates):
        losses = [self.validation.loss(params) for params in updates.client_params()]
        weights = updates.squared_norms.new_zeros(len(losses))
        weights[losses.index(min(losses))] = 1
        return Aggregation(weights=weights, scores=-updates.squared_norms.new_tensor(losses))
'''

ENTRY_POINTS = f'''
[project.entry-points."fedif_flower.attacks"]
rotate = "{PACKAGE}.extras:Rotate"

[project.entry-points."fedif_flower.strategies"]
smallest-loss = "{PACKAGE}.extras:SmallestLoss"
'''


@dataclass(frozen=True)
class Installed:
    """Where the package's app lies, and an environment in which it is installed."""

    app: Path
    environment: dict[str, str]

    def fedif(self, *arguments: object) -> str:
        """Run the command as a user does; return what it printed."""
        code = "import sys; from fedif_studies.commands import main; main()"
        result = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=self.environment,
            cwd=self.app.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Iterator[Installed]:
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("out-there")
    app, site = folder / "out-there", folder / "site"
    write_app(app)
    (app / PACKAGE / "extras.py").write_text(EXTRAS)
    with (app / "pyproject.toml").open("a") as file:
        file.write(ENTRY_POINTS)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--target", site]
    subprocess.run([*pip, *options, app], check=True, cwd=folder, capture_output=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(REPOSITORY)]))
        patch.delenv("FLWR_HOME", raising=False)
        yield Installed(app, dict(os.environ))


def check(run_dir: Path, **figures: object) -> None:
    """The package's own strategy gave all weight to the one client that does not lie."""
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.5
    rows = read_rows(run_dir / "clients.csv")
    assert {(row["malicious"], float(row["weight"])) for row in rows} == {("1", 0.0), ("0", 1.0)}
    for key, value in figures.items():
        assert summary["config"][key.replace("_", "-")] == value


def test_fedif_list_says_where_they_come_from(installed):
    cells = [line.split("│") for line in installed.fedif("list").splitlines()]
    places = {row[1].strip(): row[3].strip() for row in cells if len(row) == 5}
    for name, place in (
        ("out-there", "task:task"),
        ("rotate", "extras:Rotate"),
        ("smallest-loss", "extras:SmallestLoss"),
    ):
        assert places[name] == f"out-there 0.1.0: {PACKAGE}.{place}"


def test_the_new_app_s_own_test_passes(installed):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    result = subprocess.run(
        command, env=installed.environment, cwd=installed.app, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.ray
def test_fedif_run_by_the_names_of_entry_points(installed, tmp_path):
    settings = " ".join(f"{key}={value}" for key, value in SMALL.items())
    names = 'task="out-there" attack="rotate" strategy="smallest-loss"'
    printed = installed.fedif("run", "-c", f"{settings} {names}", "--output-dir", tmp_path)
    assert "smallest-loss on out-there, attack: rotate" in printed
    assert "rotating labels out there" in printed
    [run_dir] = tmp_path.iterdir()
    assert run_dir.name.startswith("smallest-loss-out-there-rotate-")
    check(run_dir, task="out-there")


@pytest.mark.ray
def test_flwr_run_of_the_new_app(installed, tmp_path):
    run_config = {
        "attack": "rotate",
        "strategy": f"{PACKAGE}.extras:SmallestLoss",
        "num-server-rounds": 2,
        "output-dir": str(tmp_path / "runs"),
    }
    with (tmp_path / "log").open("wb+") as log, LocalSuperLink(log, lambda: None) as superlink:
        process = superlink.submit(installed.app, run_config, {"num-supernodes": 2})
        status, details = superlink.outcome()
        process.wait()
    printed = (tmp_path / "log").read_text(errors="replace")
    assert status == "finished:completed", f"{details}\n{printed[-3000:]}"
    [run_dir] = (tmp_path / "runs").iterdir()
    check(run_dir, task="this-app:out-there", attack="rotate")


@pytest.mark.deployment
@pytest.mark.all
def test_two_real_nodes(installed, tmp_path):
    with Deployment(tmp_path) as deployment:
        deployment.start_superlink()
        # One node's operator allows imports from the package; the other's does not.
        allowed = f"import-from='{PACKAGE}'"
        for number, more in enumerate((allowed, "")):
            deployment.start_node(f"node{number}", f"partition-id={number} num-partitions=2 {more}")
        deployment.wait_online()
        run_config = {
            **SMALL,
            "num-clients": "auto",
            "task": f"{PACKAGE}.task:task",
            "attack": "rotate",
            "malicious-fraction": 0.0,
            "strategy": "smallest-loss",
            "num-server-rounds": 1,
            "start-without": "unfit",
            "run-name": "named",
            "least-participation": 0.0,
        }
        run_id = deployment.submit(REPOSITORY, run_config)
        status, details = deployment.outcome(run_id)
        assert status == "finished:completed", f"{details}\n{deployment.run_log(run_id)[-3000:]}"
        run_dir = deployment.server / "runs" / "named"
        rows = read_rows(run_dir / "clients.csv")
        assert json.loads((run_dir / "config.json").read_text())["num-clients"] == 2
        assert "num-clients = 2: the nodes that are online now" in deployment.run_log(run_id)
    reasons = {row["partition_id"]: row["rejection"] for row in rows}
    assert reasons["0"] == ""
    assert f"this node imports nothing from '{PACKAGE}' for a server" in reasons["1"]
