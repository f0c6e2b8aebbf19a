"""Runs whose held-out labels are partly wrong: said before round 1, corrected, frozen."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from fedif_consortium.statement.replay import replay
from fedif_flower.attribution.table import split_columns
from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.messages.held_out_classes import HeldOutClasses, read_held_out_classes
from fedif_flower.run import held_out
from fedif_flower.run.config import RunConfig
from fedif_flower.run.correction import with_recorded_noise
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.own_sections import ValidationSettings
from fedif_flower.run.parts import run_parts
from fedif_flower.run.results import load
from fedif_flower.run.secret_validation import paying_part, salt_of, with_recorded_loss
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.seeding import derive_seed
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import Task
from fedif_flower.valuation import Validation
from fedif_flower.valuation.examination import contradicted_share
from fedif_flower.valuation.held_out import HeldOut
from fedif_flower.valuation.label_noise import ForwardCorrected, transition_matrix
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
    corrected = with_recorded_noise(loaded, folder.provenance.read()).validation
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


def test_the_last_model_is_looked_at_whatever_the_rounds_between(tmp_path):
    config = config_of(tmp_path, num_server_rounds=3, eval_every=2, validation__vet=False)
    folder = run(config, wrong=0)
    lines = load(folder.path).lines("rounds")
    looked_at = [line["round"] for line in lines if line["validation_contradicted"] is not None]
    assert looked_at == [0, 2, 3]


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


def test_what_weighs_nothing_is_not_among_the_labels_of_that_share():
    """One sure wrong answer counts, and one of a class of weight 0 does not: 1 of 1."""
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.eye_(model.weight)
    loss_fn = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.0]))
    outputs = torch.tensor([[0.0, 9.0], [9.0, 0.0]])
    judge = Validation(model, outputs, torch.tensor([0, 1]), loss_fn=loss_fn, device="cpu")
    assert contradicted_share(judge, judge.params(), {}) == 1.0


@pytest.mark.parametrize(("noise", "corrected"), [("off", 0.0), (0.0, 0.0), (0.2, 0.2)])
def test_a_share_that_is_set_is_taken(tmp_path, noise, corrected):
    folder = run(config_of(tmp_path, num_server_rounds=1, validation__noise=noise))
    record = folder.provenance.read()["held_out"]
    assert record["corrected_noise"] == corrected
    assert record["noise"] > 0  # It was examined all the same.


BY_CLASS = HeldOut(
    120,
    noise=0.0,
    low=0.0,
    high=0.0,
    lower_quartile=0.0,
    by_class=0.3,
    transitions=tuple(
        tuple(0.7 if label == other else 0.3 / 9 for other in range(10)) for label in range(10)
    ),
)


def test_chances_by_class_are_corrected_for_recorded_and_found_again(tmp_path, monkeypatch, caplog):
    """The chances are symmetric here: the loss is that of a share of 0.3."""
    monkeypatch.setattr(held_out, "examine", lambda *_: BY_CLASS)
    with caplog.at_level(logging.INFO):
        folder = run(config_of(tmp_path, num_server_rounds=4, validation__noise="by-class"))
    assert "corrected for 30 % of wrong labels, by class" in caplog.text
    record = folder.provenance.read()["held_out"]
    assert (record["corrected_noise"], record["corrected_by_class"]) == (0.3, True)

    config = config_of(tmp_path / "same", num_server_rounds=4, validation__noise=0.3)
    same = run(config)
    losses = [load(f.path).lines("rounds")[-1]["validation_loss"] for f in (folder, same)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)

    loaded = with_recorded_noise(load_task(config, digits(config)), folder.provenance.read())
    torch.testing.assert_close(
        loaded.validation.noise, torch.tensor(BY_CLASS.transitions, dtype=torch.float64)
    )


def test_a_run_that_goes_on_has_the_chances_by_class(tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "examine", lambda *_: BY_CLASS)
    config = config_of(
        tmp_path, num_server_rounds=4, checkpoint_every=2, validation__noise="by-class"
    )
    with pytest.raises(Killed):
        run(config, on_row=killed_at(3))
    record = run(config.replace(resume="auto")).provenance.read()["held_out"]
    assert record["corrected_by_class"]
    assert record["transitions"] == [list(row) for row in BY_CLASS.transitions]


def test_chances_by_class_that_are_not_known_are_refused_before_a_member_is_asked(tmp_path):
    """Digits' 120 held-out labels are some 12 of each class."""
    asked: list[int] = []
    config = config_of(tmp_path, validation__noise="by-class")
    with pytest.raises(ConfigError, match=r"validation.noise = 'by-class', but there is no"):
        run(config, on_message=lambda: asked.append(1))
    assert not asked


@pytest.mark.parametrize("noise", ["auto", "off", 0.2])
@pytest.mark.parametrize("own_noise", [0.3, transition_matrix(0.3, 10)])
def test_a_loss_of_the_task_that_allows_for_wrong_labels_stays(tmp_path, noise, own_noise, caplog):
    """It was taken for a plain cross-entropy, and corrected for nothing.

    Records say for which share it is corrected: a statement compares the share that looks wrong.
    """
    config = config_of(tmp_path, num_server_rounds=1, validation__noise=noise)
    task = replace(digits(config), loss=ForwardCorrected(functional.cross_entropy, own_noise))
    grid = LocalGrid(task_app(task), config.num_clients)
    with caplog.at_level(logging.INFO):
        folder = RunFolder(run_federation(grid, config, task=task, parts=run_parts()))
    assert "the task's own loss is corrected for wrong labels already" in caplog.text
    assert folder.provenance.read()["held_out"]["corrected_noise"] == pytest.approx(0.3)
    own = load_task(config, task).validation
    first = load(folder.path).lines("rounds")[0]
    assert first["validation_loss"] == pytest.approx(own.loss(own.params()), rel=1e-6)


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
    allowed = "allowed: a number >= 0 and <= 0.9, 'auto', 'by-class' or 'off'"
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


# -- the data that pay, where these are secret

SECRET = {"attribution": "simpson", "updates__keep": True, "credit__secret_validation": True}


@pytest.fixture
def own_secret(tmp_path, monkeypatch):
    """A server whose secret and nonces are the same in every process: so are the data that pay."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    known = SimpleNamespace(token_hex=lambda length: "ab" * length)
    monkeypatch.setattr("fedif_flower.run.secret_validation.secrets", known)


def with_wrong_test_labels(config: RunConfig) -> Task:
    """The built-in task: three in ten labels of the test split, out of which is paid, are wrong."""
    task = build_task(config)

    def test_data(site):
        images, labels = task.test_data(site)
        generator = torch.Generator().manual_seed(4)
        is_wrong = torch.rand(len(labels), generator=generator) < 0.3
        draw = torch.randint(1, 10, (len(labels),), generator=generator)
        return images, torch.where(is_wrong, (labels + draw) % 10, labels)

    return replace(task, test_data=test_data, fingerprint="wrong test labels")


def run_task(config: RunConfig, task: Task, on_row=None) -> RunFolder:
    grid = LocalGrid(task_app(task), config.num_clients)
    return RunFolder(run_federation(grid, config, on_row, task=task, parts=run_parts()))


def test_what_pays_is_examined_and_corrected_for_itself(tmp_path, own_secret, caplog):
    config = config_of(tmp_path, num_server_rounds=3, checkpoint_every=1, **SECRET)
    task = with_wrong_test_labels(config)
    with caplog.at_level(logging.INFO), pytest.raises(Killed):
        run_task(config, task, killed_at(2))
    folder = RunFolder(config.run_dir)
    provenance = folder.provenance.read()
    weighs, pays = provenance["held_out"], provenance["paying_held_out"]
    assert weighs["corrected_noise"] == 0.0
    assert 0.1 <= pays["low"] <= pays["noise"] <= pays["high"] <= 0.5
    assert pays["corrected_noise"] == pays["noise"]
    assert pays["examples"] == weighs["examples"]
    assert "secret data, by which members are paid: about" in caplog.text
    # Nothing tells which examples these are, nor which of them look wrong.
    assert "suspects" not in pays
    assert not folder.held_out.path.exists()

    folder = run_task(config.replace(resume="auto"), task)
    assert folder.provenance.read() == provenance
    salt = salt_of(provenance["paying_nonce"])
    part = with_recorded_loss(paying_part(load_task(config, task), salt), provenance)
    assert part.noise == pays["noise"]
    assert part.noise_interval == (pays["low"], pays["high"])
    measured = float(folder.attributed_rounds.read()[0]["loss_before"])
    assert measured == pytest.approx(part.loss(part.params()), rel=1e-6)
    plain = paying_part(load_task(config, task), salt).validation
    assert measured != pytest.approx(plain.loss(plain.params()), rel=1e-3)
    # The weighing data's own loss is cross-entropy.
    weighing = load_task(config, task).validation
    first = load(folder.path).lines("rounds")[0]
    assert first["validation_loss"] == pytest.approx(weighing.loss(weighing.params()), rel=1e-6)
    assert replay(folder.path, task).rounds == 3


def test_wrong_labels_among_those_that_weigh_change_no_loss_that_pays(tmp_path, own_secret):
    config = config_of(tmp_path, num_server_rounds=1, **SECRET)
    folder = run(config)
    provenance = folder.provenance.read()
    assert provenance["held_out"]["corrected_noise"] > 0.15
    assert provenance["paying_held_out"]["corrected_noise"] == 0.0
    salt = salt_of(provenance["paying_nonce"])
    part = paying_part(load_task(config, digits(config)), salt).validation
    measured = float(folder.attributed_rounds.read()[0]["loss_before"])
    assert measured == pytest.approx(part.loss(part.params()), rel=1e-6)


def test_the_second_witness_looks_at_what_pays_too(tmp_path, own_secret, monkeypatch):
    shares = iter([0.5, 0.25] * 3)
    monkeypatch.setattr(held_out, "contradicted_share", lambda *_: next(shares))
    folder = run(config_of(tmp_path, validation__vet=False, **SECRET))
    lines = load(folder.path).lines("rounds")
    assert [line["validation_contradicted"] for line in lines] == [0.5] * 3
    assert [line["paying_contradicted"] for line in lines] == [0.25] * 3
    assert folder.provenance.read()["paying_held_out"] == {"corrected_noise": 0.0}
    assert "paying_contradicted" not in RunFolder(tmp_path).rounds.columns


@pytest.mark.parametrize(("noise", "corrected"), [("off", 0.0), (0.2, 0.2)])
def test_a_share_that_is_set_holds_for_what_pays(tmp_path, own_secret, noise, corrected):
    settings = SECRET | {"validation__vet": False, "num_server_rounds": 1}
    folder = run(config_of(tmp_path, validation__noise=noise, **settings))
    record = folder.provenance.read()
    assert record["paying_held_out"]["corrected_noise"] == corrected
    loaded = load_task(config_of(tmp_path), digits(config_of(tmp_path)))
    part = paying_part(loaded, salt_of(record["paying_nonce"]))
    assert with_recorded_loss(part, record).noise == corrected


def test_secret_data_follow_from_more_bits_than_can_be_tried(tmp_path):
    """PyTorch's generators would take the same 32 bits of what follows from these two salts."""
    salts = (10090, 45021)
    low_bits = {derive_seed("paying", salt) % 2**32 for salt in salts}
    assert len(low_bits) == 1
    loaded = load_task(config_of(tmp_path), digits(config_of(tmp_path)))
    parts = [paying_part(loaded, f"{salt:x}").validation for salt in salts]
    one, other = (part.batches[0].content[0] for part in parts)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("tokens", [7, 0.01])
def test_as_many_examples_are_drawn_whatever_each_weighs_in_the_loss(tmp_path, tokens):
    """A loss of tokens says how many tokens a batch has, not how many examples."""

    def by_token(model, batch):
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels), tokens * len(labels)

    loaded = load_task(
        config_of(tmp_path), replace(digits(config_of(tmp_path)), batch_loss=by_token)
    )
    part = paying_part(loaded, "a").validation
    assert sum(len(batch.content[1]) for batch in part.batches) == 120


def test_a_run_of_an_earlier_version_is_recomputed_with_the_loss_that_it_had(tmp_path, own_secret):
    """It corrected what pays for what it found in the validation split."""
    loaded = load_task(config_of(tmp_path), digits(config_of(tmp_path)))
    earlier = {"held_out": {"corrected_noise": 0.3}, "paying_nonce": "a"}
    part = paying_part(loaded, salt_of("a"))
    assert with_recorded_loss(part, earlier).noise == 0.3


def test_members_are_warned_of_classes_that_either_set_lacks(tmp_path, own_secret):
    """Class 2 is not among the data that weigh, and class 1 is not among those that pay."""

    def labelled(count: int, *labels: int):
        inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(count))
        return inputs, torch.tensor(labels).repeat(count // len(labels))

    task = Task(
        name="three",
        model=lambda: torch.nn.Linear(2, 3),
        num_classes=3,
        client_data=lambda site: labelled(60, 0, 1, 2),
        validation_data=lambda site: labelled(40, 0, 1),
        test_data=lambda site: labelled(80, 0, 2),
    )
    told = []
    app = task_app(task)

    def client(message, context):
        told.append(read_held_out_classes(message.content["config"]))
        return app(message, context)

    settings = {"num_server_rounds": 1, "model": "auto", **SECRET}
    config = config_of(tmp_path, **settings)
    run_federation(LocalGrid(client, 6), config, task=task, parts=run_parts())
    assert told == [HeldOutClasses(missing=(1, 2), rare=())] * 6


def test_a_set_that_is_not_examined_is_said(tmp_path):
    """Nothing is corrected then, though ``validation.noise`` is "auto"."""
    folder = run(config_of(tmp_path, validation__vet=False, num_server_rounds=1))
    remarks = folder.summary.read()["data_remarks"]
    assert any("is not examined (validation.vet = false)" in remark for remark in remarks)
