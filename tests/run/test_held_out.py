"""Runs whose held-out labels are partly wrong: said before round 1, corrected, frozen."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedif_consortium.statement.replay import replay
from fedif_flower.attribution.table import split_columns
from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.run import held_out
from fedif_flower.run.config import RunConfig, ValidationSettings
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.parts import run_parts
from fedif_flower.run.results import load
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import Task
from fedif_flower.valuation import Validation
from fedif_flower.valuation.held_out import HeldOut, contradicted_share
from tests.consortium.statement.signed_runs import altered, rewrite
from tests.run.points import classes, regression
from tests.run.points import run as run_points
from tests.run.resuming import Killed, killed_at

WRONG = 33  # Of the 120 held-out labels of digits.


def config_of(folder: Path, **settings) -> RunConfig:
    usual = {
        "num-clients": 6,
        "fraction-train": 1.0,
        "num-server-rounds": 2,
        "local-epochs": 1,
        "model": "mlp",
        "device": "cpu",
        "output-dir": str(folder),
        "run-name": "run",
    }
    own = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    return RunConfig.from_run_config(usual | own, run_parts())


def digits(config: RunConfig, wrong: int = WRONG) -> Task:
    """The built-in task with wrong labels among those held out."""
    task = build_task(config)

    def validation_data(site):
        images, labels = task.validation_data(site)
        draw = torch.randint(1, 10, (wrong,), generator=torch.Generator().manual_seed(4))
        return images, torch.cat([(labels[:wrong] + draw) % 10, labels[wrong:]])

    return replace(task, validation_data=validation_data, fingerprint=f"{wrong} wrong")


def run(config: RunConfig, wrong: int = WRONG, on_row=None, on_message=None) -> RunFolder:
    task = digits(config, wrong)
    app = task_app(task)

    def client(message, context):
        if on_message is not None:
            on_message()
        return app(message, context)

    grid = LocalGrid(client, config.num_clients)
    return RunFolder(run_federation(grid, config, on_row, task=task, parts=run_parts()))


def test_wrong_labels_are_said_before_anybody_is_asked_and_corrected(tmp_path, caplog):
    said = "of the held-out labels look wrong"
    is_said: list[bool] = []  # When a member gets a message.
    with caplog.at_level(logging.INFO):
        config = config_of(tmp_path, attribution="simpson", updates__keep=True)
        folder = run(config, on_message=lambda: is_said.append(said in caplog.text))
    assert is_said
    assert all(is_said)

    record = folder.provenance.read()["held_out"]
    assert 0.15 <= record["low"] <= record["noise"] <= record["high"] <= 0.5
    assert record["corrected_noise"] == record["noise"]
    suspects = folder.held_out.read()
    assert list(suspects[0]) == ["index", "given", "likely", "probability"]
    assert f"{len(suspects)} suspects in held_out.csv" in " ".join(
        folder.report.read_text().split()
    )
    assert any(said in remark for remark in folder.summary.read()["data_remarks"])

    # The loss that the records tell of is the corrected one, whoever takes it again.
    loaded = load_task(config, digits(config))
    corrected = held_out.with_recorded_noise(loaded, folder.provenance.read()).validation
    first = load(folder.path).lines("rounds")[0]
    assert corrected.noise == record["noise"]
    assert first["validation_loss"] == pytest.approx(corrected.loss(corrected.params()), rel=1e-6)
    assert first["validation_loss"] != pytest.approx(
        loaded.validation.loss(loaded.validation.params()), rel=1e-6
    )
    assert replay(folder.path, digits(config)).rounds == 2

    # Where the share lies in an interval, contributions are measured at both of its ends.
    assert corrected.noise_interval == (record["low"], record["high"])
    lines = folder.attribution.read()
    noise_columns = set(split_columns(0, 20, has_noise_ends=True))
    assert all(all(line[column] for column in noise_columns) for line in lines)
    changed = "contribution_noise_high"
    rewrite(folder.attribution, altered({"round": "2", "client_id": "1003"}, **{changed: "7.0"}))
    with pytest.raises(StatementError, match=f"round 2, client 1003: {changed} = 7.0 is recorded"):
        replay(folder.path, digits(config))


def test_a_clean_run_is_the_run_without_an_examination(tmp_path):
    models = []
    for vet in (True, False):
        folder = run(config_of(tmp_path / str(vet), validation__vet=vet), wrong=0)
        models.append(torch.load(folder.model, weights_only=True))
        assert not folder.held_out.path.exists()
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])


def test_a_resumed_run_keeps_the_share_and_estimates_nothing(tmp_path, monkeypatch):
    config = config_of(tmp_path, num_server_rounds=4, checkpoint_every=2)
    with pytest.raises(Killed):
        run(config, on_row=killed_at(3))
    before = RunFolder(config.run_dir).provenance.read()["held_out"]

    def never(*arguments):
        raise AssertionError("estimated again")

    monkeypatch.setattr(held_out, "examine", never)
    folder = run(config.replace(resume="auto"))
    assert folder.provenance.read()["held_out"] == before
    assert before["corrected_noise"] > 0
    assert len(folder.held_out.read()) > 10

    whole = run(
        config_of(
            tmp_path / "whole",
            num_server_rounds=4,
            validation__noise=before["noise"],
            validation__vet=False,
        )
    )
    ends = [torch.load(found.model, weights_only=True) for found in (folder, whole)]
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_the_second_witness_is_a_column_and_sets_nothing(tmp_path, monkeypatch):
    """Whatever the model contradicts, the loss is corrected for what the set itself told."""
    config = config_of(tmp_path)
    noises = []
    for share in (None, 0.9):
        if share is not None:
            monkeypatch.setattr(held_out, "contradicted_share", lambda *_: 0.9)
        folder = run(config.replace(overwrite=True))
        column = [line["validation_contradicted"] for line in load(folder.path).lines("rounds")]
        assert column == [share] * 3 if share else all(0 <= value <= 1 for value in column)
        noises.append(
            (
                folder.provenance.read()["held_out"]["corrected_noise"],
                torch.load(folder.model, weights_only=True),
            )
        )
    (first, model), (second, other) = noises
    assert first == second
    assert all(torch.equal(model[key], other[key]) for key in model)


def test_hand_computed_share_that_a_model_contradicts():
    """A sure right answer, a sure wrong one, an unsure wrong one, an ignored label."""
    outputs = torch.tensor([[9.0, 0.0], [9.0, 0.0], [1.0, 0.0], [9.0, 0.0]])
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.eye_(model.weight)
    judge = Validation(model, outputs, torch.tensor([0, 1, 1, -100]), device="cpu")
    assert contradicted_share(judge, judge.params(), {}) == pytest.approx(1 / 3)
    assert contradicted_share(judge, judge.params() * torch.nan, {}) is None


@pytest.mark.parametrize(("noise", "corrected"), [("off", 0.0), (0.0, 0.0), (0.2, 0.2)])
def test_a_share_that_is_set_is_taken(tmp_path, noise, corrected):
    folder = run(config_of(tmp_path, num_server_rounds=1, validation__noise=noise))
    record = folder.provenance.read()["held_out"]
    assert record["corrected_noise"] == corrected
    assert record["noise"] > 0  # It was examined all the same.


def test_an_unsure_estimate_corrects_nothing(tmp_path, monkeypatch):
    unsure = HeldOut(120, noise=0.1, low=0.0, high=0.3)
    monkeypatch.setattr(held_out, "examine", lambda *_: unsure)
    folder = run(config_of(tmp_path, num_server_rounds=1))
    assert folder.provenance.read()["held_out"]["corrected_noise"] == 0.0


def test_regression_says_why_there_is_no_estimate(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        folder = RunFolder(run_points(tmp_path, regression(), num_server_rounds=1))
    assert "whether held-out labels are wrong is not known: targets are no classes" in caplog.text
    assert folder.provenance.read()["held_out"]["noise"] is None


@pytest.mark.parametrize(
    ("value", "words"), [(0.95, "0.95"), ("on", "'on'"), (-0.1, "-0.1"), (True, "True")]
)
def test_values_that_are_not_allowed(tmp_path, value, words):
    allowed = "allowed: a number >= 0 and <= 0.9, 'auto' or 'off'"
    with pytest.raises(ConfigError, match=f"validation.noise = {words}; {allowed}"):
        config_of(tmp_path, validation__noise=value)


def test_a_share_at_which_labels_of_two_classes_say_nothing_is_refused(tmp_path):
    own = {"validation.noise": 0.5}
    with pytest.raises(ConfigError, match=r"validation.noise = 0.5; allowed: >= 0 and < 0.5"):
        run_points(tmp_path, classes(), **own)


def test_defaults_are_those_of_the_constructor():
    assert ValidationSettings().check() == held_out.ValidationSettings().check()
    assert ValidationSettings.defaults() == {
        "validation.noise": "auto",
        "validation.vet": True,
        "validation.seconds": 60.0,
    }


LIARS = {
    "num_clients": 10,
    "num_server_rounds": 15,
    "attack": "label-noise",
    "malicious_fraction": 0.3,
    "local_epochs": 2,
}


@pytest.mark.all
def test_members_are_ranked_as_with_clean_labels(tmp_path):
    found = {}
    for name, wrong, noise in (
        ("clean", 0, "auto"),
        ("as it is", WRONG, "off"),
        ("corrected", WRONG, "auto"),
    ):
        config = config_of(tmp_path / name, validation__noise=noise, **LIARS)
        found[name] = run(config, wrong).summary.read()["detection_auc"]
    assert found["as it is"] < found["corrected"] - 0.2
    assert found["corrected"] >= found["clean"] - 0.2


@pytest.mark.all
def test_liars_are_paid_less(tmp_path):
    paid = {}
    for noise in ("off", "auto"):
        config = config_of(
            tmp_path / noise,
            validation__noise=noise,
            strategy="fedavg",
            attribution="simpson",
            **LIARS,
        )
        members = load(run(config).path).members
        positive = {m.client_id: max(m.contribution, 0) for m in members}
        liars = sum(positive[m.client_id] for m in members if m.malicious)
        paid[noise] = liars / sum(positive.values())
    assert paid["off"] > 0.3
    assert paid["auto"] < 0.1
