"""Backdoors made by hand and by a run's members: found by inversion, and unlearned."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import load_task
from fedif_studies.backdoors import unlearning
from fedif_studies.backdoors.inversion import invert_triggers
from fedif_studies.backdoors.unlearning import (
    FoundTrigger,
    Unlearned,
    unlearn_run,
    unlearn_triggers,
)
from fedif_studies.commands import cli
from tests.run import points
from tests.strategies.named import config, run


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(weight: Tensor, bias: Tensor) -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, len(bias)))
    with torch.no_grad():
        model[1].weight.copy_(weight)
        model[1].bias.copy_(bias)
    return model


@pytest.fixture
def model() -> nn.Sequential:
    """Class 1 where the last pixel is bright; else 0 or 2, by the sum of the others."""
    weight = torch.zeros(3, 9)
    weight[0, :8], weight[1, 8], weight[2, :8] = -1.0, 12.0, 1.0
    return linear(weight, torch.tensor([4.0, -6.0, -4.0]))


@pytest.fixture
def images() -> Tensor:
    found = torch.rand(200, 1, 3, 3, generator=generator(0))
    found[:, 0, -1, -1] *= 0.4
    found[0, 0, -1, -1] = 1.0  # The trigger lies in the range of the pixels.
    return found


def test_the_class_with_a_backdoor_has_the_smallest_mask_and_it_covers_the_trigger(model, images):
    triggers = invert_triggers(model, images, 3, steps=100, generator=generator())
    assert int(triggers.sizes.argmin()) == 1
    assert int(triggers.masks[1, 0].argmax()) == 8
    taken = model(triggers.stamp(images, 1)).argmax(dim=1)
    assert float((taken == 1).double().mean()) > 0.9
    for patch in (triggers.masks, triggers.patterns):
        assert bool(((patch >= 0) & (patch <= 1)).all())


def test_a_backdoor_is_unlearned_and_other_answers_stay(model, images):
    before, with_trigger = model(images).argmax(dim=1), images.clone()
    with_trigger[:, 0, -1, -1] = 1.0
    classes = torch.where(images.flatten(1)[:, :8].sum(dim=1) > 4, 2, 0)
    assert bool((model(with_trigger).argmax(dim=1) == 1).all())
    found = unlearn_triggers(model, images, classes, learning_rate=0.1, generator=generator())
    assert (found[0].label, found[0].share < 0.5) == (1, True)
    assert found[-1].share >= 0.5
    answers = model(with_trigger).argmax(dim=1)
    assert float((answers == classes).double().mean()) > 0.7
    kept = model(images).argmax(dim=1)[1:] == before[1:]
    assert float(kept.double().mean()) > 0.9


def test_a_model_without_a_trigger_is_left_as_it_is(images):
    # Each class by pixels of its own: no mask is much smaller than another.
    model = linear(6.0 * torch.eye(3).repeat_interleave(3, dim=1), torch.zeros(3))
    before = [parameter.clone() for parameter in model.parameters()]
    (found,) = unlearn_triggers(model, images, model(images).argmax(dim=1), generator=generator())
    assert found.share >= 0.5
    assert all(map(torch.equal, model.parameters(), before))


def success(folder: RunFolder, path) -> float:
    """Return the share of test images with the trigger that get its class."""
    loaded = load_task(RunConfig.of_records(folder.config.read()))
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
    before, after = success(folder, folder.model), success(folder, written)
    assert before > 0.9
    assert after < 0.3
    assert f"Attack success rate: {before:.1%} before, {after:.1%} after" in told
    before, after = unlearn_run(folder.path).test
    assert after > before - 0.1 > 0.7


def test_passes_that_did_not_suffice_are_told(tmp_path, monkeypatch):
    found = [FoundTrigger(3, 0.25, is_trigger=True)] * 5
    result = Unlearned(found, (0.9, 0.8), (0.7, 0.6), None, tmp_path / "model-unlearned.pt")
    monkeypatch.setattr(unlearning, "unlearn_run", lambda run_dir, small: result)
    told = CliRunner().invoke(cli, ["unlearn", str(tmp_path)]).output
    assert "The last of 5 passes still found a trigger." in told
    assert "Accuracy on the test split: 70.0% before, 60.0% after" in told
    assert "Attack success" not in told  # The run's own attack, if any, is no backdoor.


@pytest.mark.parametrize("is_trigger", [True, False])
def test_no_earlier_model_lies_beside_one_that_was_left_as_it_is(tmp_path, monkeypatch, is_trigger):
    chosen = config(tmp_path, "fedavg", **{"num-server-rounds": 1})
    run(chosen)
    found = [FoundTrigger(3, 0.25, is_trigger)]
    monkeypatch.setattr(unlearning, "unlearn_triggers", lambda *_, **__: found)
    written = chosen.run_dir / "model-unlearned.pt"
    written.write_bytes(b"of an earlier call")
    told = CliRunner().invoke(cli, ["unlearn", str(chosen.run_dir)]).output
    assert ("The model was left as it is." in told) == (not is_trigger)
    assert written.exists() == is_trigger
    if is_trigger:
        assert written.read_bytes() != b"of an earlier call"


def test_what_cannot_be_unlearned_is_named(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds no complete run"):
        unlearn_run(tmp_path)
    run_dir = points.run(tmp_path, points.regression())
    with pytest.raises(ConfigError, match="this app brings no task along"):
        unlearn_run(run_dir)


@pytest.mark.parametrize("content", [b"", b"no model", b"PK\x03\x04"])
def test_a_damaged_model_is_refused_in_a_sentence(tmp_path, content):
    chosen = config(tmp_path, "fedavg", **{"num-server-rounds": 1})
    run(chosen)
    RunFolder(chosen.run_dir).model.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.pt holds no model of this run: "):
        unlearn_run(chosen.run_dir)
