"""A run whose members trained a backdoor into its model, and the command that takes it out."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import load_task
from fedif_studies.backdoors.unlearning import unlearn_run
from fedif_studies.commands import cli
from tests.run import points
from tests.strategies.named import config, run


def success(folder: RunFolder, path) -> float:
    """Return the share of test images with the trigger that get its class."""
    loaded = load_task(RunConfig.from_run_config(folder.config.read()))
    loaded.model.load_state_dict(torch.load(path, weights_only=True))
    assert loaded.triggered is not None
    params = torch.cat([parameter.flatten() for parameter in loaded.model.parameters()])
    return loaded.triggered.accuracy(params.detach())


@pytest.mark.all
def test_the_backdoor_goes_and_the_model_stays_of_use(tmp_path):
    keys = {"attack": "pixel-trigger", "malicious-fraction": 0.4, "local-epochs": 5}
    keys |= {"fraction-train": 1.0, "num-server-rounds": 20, "eval-every": 20}
    chosen = config(tmp_path, "fedavg", **keys)
    run(chosen)
    folder, written = RunFolder(chosen.run_dir), chosen.run_dir / "model-unlearned.pt"
    given = folder.model.read_bytes()
    told = CliRunner().invoke(cli, ["unlearn", str(folder.path)]).output
    assert "A trigger: the mask of class 0 covers" in told
    assert f"Model: {written}" in told
    assert folder.model.read_bytes() == given
    assert success(folder, folder.model) > 0.9
    assert success(folder, written) < 0.3
    before, after = unlearn_run(folder.path).test
    assert after > before - 0.1 > 0.7


def test_what_cannot_be_unlearned_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no complete run"):
        unlearn_run(tmp_path)
    run_dir = points.run(tmp_path, points.regression())
    with pytest.raises(ConfigError, match="this app brings no task along"):
        unlearn_run(run_dir)
