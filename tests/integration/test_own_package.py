"""A task, an attack and a strategy of a package that is no part of this project.

The package is what ``fedif new`` writes, with an attack and a strategy added, installed with pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fedif_flower.run.rows import read_rows
from fedif_flower.scaffold import write_app
from tests.integration.deployed import REPOSITORY

pytestmark = [pytest.mark.ray, pytest.mark.all]
PACKAGE = "out_there"

EXTRAS = '''
"""An attack and a strategy."""

from fedif_flower.attacks import Behaviour
from fedif_flower.round import Aggregation
from fedif_flower.strategies import ScreenedStrategy


class Rotate(Behaviour):
    """Every label becomes the next class."""

    def __init__(self, ratio):
        self.ratio = ratio

    def poison_labels(self, labels, num_classes, generator):
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


def test_flwr_run_of_an_app_that_is_installed(tmp_path, shell):
    pytest.importorskip("setuptools", minversion="77")
    app, site = tmp_path / "out-there", tmp_path / "site"
    write_app(app)
    (app / PACKAGE / "extras.py").write_text(EXTRAS)
    with (app / "pyproject.toml").open("a") as file:
        file.write(ENTRY_POINTS)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--target", site]
    subprocess.run([*pip, *options, app], check=True, cwd=tmp_path, capture_output=True)
    shell.environment["PYTHONPATH"] = os.pathsep.join([str(site), str(REPOSITORY)])
    given = f'num-server-rounds=2 output-dir="{tmp_path / "runs"}"'
    names = 'attack="rotate" strategy="smallest-loss"'
    printed = shell.flwr_run(app, "--run-config", f"{given} {names}")
    assert (tmp_path / "runs").exists(), printed[-3000:]
    [run_dir] = (tmp_path / "runs").iterdir()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["config"]["task"] == "this-app:out-there"
    assert summary["test_accuracy"] > 0.5
    # The package's own strategy gave all weight to the one client that does not lie.
    rows = read_rows(run_dir / "clients.csv")
    assert {(row["malicious"], float(row["weight"])) for row in rows} == {("1", 0.0), ("0", 1.0)}
