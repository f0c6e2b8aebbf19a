"""A run whose members trained a backdoor into its model, and the command that takes it out."""

from __future__ import annotations

import sys

import pytest
import torch

from client_app import app as client_app
from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import load_task
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_studies import commands as cli
from fedif_studies.backdoors.unlearning import unlearn_run
from tests.run import points


@pytest.fixture(scope="module")
def backdoored(tmp_path_factory) -> RunFolder:
    settings = {
        **{"num-clients": 10, "fraction-train": 1.0, "num-server-rounds": 20, "eval-every": 20},
        **{"strategy": "fedavg", "attack": "pixel-trigger", "malicious-fraction": 0.4},
        **{"output-dir": str(tmp_path_factory.mktemp("runs")), "device": "cpu"},
    }
    config = RunConfig.from_run_config(RunConfig.defaults() | settings)
    return RunFolder(run_federation(LocalGrid(client_app, 10), config))


def success(folder: RunFolder, path) -> float:
    """Return the share of test images with the trigger that get its class."""
    loaded = load_task(RunConfig.from_run_config(folder.config.read()))
    loaded.model.load_state_dict(torch.load(path, weights_only=True))
    assert loaded.triggered is not None
    params = torch.cat([parameter.flatten() for parameter in loaded.model.parameters()])
    return loaded.triggered.accuracy(params.detach())


@pytest.mark.all
def test_the_backdoor_goes_and_the_model_stays_of_use(backdoored, monkeypatch, capsys):
    given = backdoored.model.read_bytes()
    monkeypatch.setattr(sys, "argv", ["fedif", "unlearn", str(backdoored.path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    told = capsys.readouterr().out
    assert "A trigger: the mask of class 0 covers" in told
    assert f"Model: {backdoored.path / 'model-unlearned.pt'}" in told
    assert backdoored.model.read_bytes() == given
    assert success(backdoored, backdoored.model) > 0.9
    assert success(backdoored, backdoored.path / "model-unlearned.pt") < 0.3
    before, after = unlearn_run(backdoored.path).test
    assert after > before - 0.1 > 0.7


def test_what_cannot_be_unlearned_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no complete run"):
        unlearn_run(tmp_path)
    run_dir = points.run(tmp_path, points.regression())
    with pytest.raises(ConfigError, match="this app brings no task along"):
        unlearn_run(run_dir)
