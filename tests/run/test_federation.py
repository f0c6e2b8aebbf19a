"""Whole federations in this process: by a run config, with members or tasks of one's own."""

from __future__ import annotations

import json
import logging
import time

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from torch import nn
from torch.nn import functional

from client_app import app as client_app
from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError, FedIFError, TrainingFailedError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.provenance import code_hash, tensors_hash
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.run import Callback, StopTraining
from fedif_flower.tasks.task import Metric, Site
from tests.run.points import SLOPE, absolute_error, line, regression
from tests.run.points import run as run_task
from tests.run.resuming import CLIENTS, run, run_config


def test_a_run_learns_and_leaves_everything_behind(tmp_path):
    rows = []
    settings = {"num_server_rounds": 15, "eval_every": 5, "local_epochs": 3, "num_clients": 10}
    config = run_config(tmp_path, **settings)
    folder = RunFolder(run_federation(LocalGrid(client_app, 10), config, rows.append))
    summary = folder.summary.read()
    assert summary["test_accuracy"] > 0.8
    assert summary["detection_auc"] > 0.8
    assert summary["malicious_weight_share"] < 0.5
    assert [row.round for row in rows] == list(range(16))
    assert [row.round for row in rows if "test_accuracy" in row.metrics] == [0, 5, 10, 15]
    clients = folder.clients.read()
    assert len(clients) == 15 * 5
    assert {row["malicious"] for row in clients} == {"0", "1"}
    origin = folder.provenance.read()
    server = load_task(config)
    assert origin["settings_sha256"] == server.config.digest()
    assert origin["validation_sha256"] == tensors_hash(server.validation_data)
    assert origin["code_sha256"] == code_hash()
    state = folder.live.read()
    assert (state["phase"], state["round"], state["num_answered"]) == ("finished", 15, 5)
    assert {node["client_id"] for node in state["asked"]} == set(state["answered"])
    assert "state.json" not in folder.results()


def test_a_backdoors_success_is_in_rounds_summary_and_report(tmp_path):
    backdoor = {"attack": "pixel-trigger", "malicious_fraction": 0.5, "strategy": "fedavg"}
    folder = RunFolder(run(run_config(tmp_path, num_server_rounds=4, eval_every=2, **backdoor)))
    rows = folder.rounds.read()
    assert [bool(row["attack_success"]) for row in rows] == [True, False, True, False, True]
    assert float(rows[0]["attack_success"]) < 0.5 < float(rows[-1]["attack_success"])
    assert folder.summary.read()["attack_success"] == float(rows[-1]["attack_success"])
    assert "| attack success rate |" in folder.report.read_text()


class Remote(LocalGrid):
    """As real nodes are: what they send has to be looked at."""

    reliable = False

    def __init__(self, client=client_app, **more) -> None:
        super().__init__(client, CLIENTS, **more)
        self.questions: list[bool] = []

    def push_messages(self, messages):
        messages = list(messages)
        queries = [m for m in messages if m.metadata.message_type == "query"]
        self.questions += ["config" in query.content for query in queries]
        return super().push_messages(messages)


@pytest.fixture(autouse=True)
def preflight_log(caplog):
    caplog.set_level(logging.INFO, "fedif_flower.run.preflight")
    return caplog


def test_every_member_is_asked_once_and_what_it_found_is_told(tmp_path, preflight_log):
    grid = Remote()
    run(run_config(tmp_path, num_server_rounds=1), grid)
    assert grid.questions == [True] * CLIENTS
    lines = [message for message in preflight_log.messages if "data: " in message]
    assert len(lines) == CLIENTS
    assert lines[0].startswith("node 1000: data: ") or lines[0].startswith("client 0 (node 1000)")
    for check in ("data", "training", "signing-key", "masking", "clock"):
        assert all(f"{check}: " in line for line in lines)


UNFIT = {2: {"data-dir": "/nowhere", "num-partitions": 3}}  # Fewer parts than clients.


def test_a_run_does_not_begin_with_a_member_that_cannot_take_part(tmp_path, preflight_log):
    config = run_config(tmp_path, num_server_rounds=1)
    words = (
        r"1 of 6 members cannot take part: client 2 \(node 1002\): data: num-clients = 6, but this "
        "node is one of 3 partitions.* start-without = 'unfit' begins all the same"
    )
    with pytest.raises(TrainingFailedError, match=words):
        run_federation(Remote(node_configs=UNFIT), config)
    assert not config.run_dir.exists()
    (line,) = [message for message in preflight_log.messages if "data failed: " in message]
    assert "; to do: put the data where data-dir" in line


def test_a_run_begins_though_an_answer_was_lost_on_its_way(tmp_path, preflight_log):
    """Flower hands a reply out once; asked again, it says that the message is unavailable."""

    def client(message: Message, context):
        if message.metadata.message_type == "query" and context.node_id == 1003:
            lost = Error(ErrorCode.MESSAGE_UNAVAILABLE, "it may have expired")
            return Message(lost, reply_to=message)
        return client_app(message, context)

    config = run_config(tmp_path, num_server_rounds=1, **{"validation.vet": False})
    folder = RunFolder(run(config, Remote(client)))
    assert folder.summary.read()["rounds"] == 1
    told = "node 1003: node warning: no answer: it may have expired; to do: "
    assert any(told in message for message in preflight_log.messages)


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        ({"data": "\x1b" * 5_000}, "node warning: unreadable"),
        ({"time": 3600}, "clock warning: 3"),  # From now on: tests are collected long before.
        ({"time": float("nan")}, ""),
    ],
)
def test_a_hostile_answer_stops_nothing_and_is_bounded(tmp_path, preflight_log, answer, warning):
    def client(message: Message, context):
        reply = client_app(message, context)
        if message.metadata.message_type == "query" and context.node_id == 1003:
            record = ConfigRecord(answer)
            if "time" in answer:
                record["time"] = time.time() + answer["time"]
            content = RecordDict({**reply.content, "preflight": record})
            return Message(content, reply_to=message)
        return reply

    run(run_config(tmp_path, num_server_rounds=1), Remote(client))
    about = [m for m in preflight_log.messages if "node 1003" in m and "to do: " in m]
    assert len(about) == (1 if warning else 0)
    for message in about:
        assert warning in message
        assert len(message) < 1000
        assert message.isprintable()


def test_a_regression_has_its_metric_wherever_a_classifier_has_accuracy(tmp_path):
    remark = "train: 40 points are read; passed over: files .gif (3)"
    run_dir = run_task(tmp_path, regression(remarks=[remark]))
    assert run_dir.name.startswith("fedif-line-none-")
    rows = read_rows(run_dir / "rounds.csv")
    assert {row["test_accuracy"] for row in rows} == {""}
    errors = [float(row["test_mean_absolute_error"]) for row in rows]
    assert errors[-1] < errors[0] / 5
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["data_remarks"] == [remark]
    figures = summary["metrics"]["mean absolute error"]
    assert figures["test_best"] == min(errors[1:])
    assert not figures["higher_is_better"]
    report = (run_dir / "report.md").read_text()
    assert f"| test mean absolute error | {errors[-1]:.4g} |" in report
    assert "accuracy" not in report
    assert f"\nData, {remark}.\n" in report
    assert (run_dir / "metric.png").exists()
    assert not (run_dir / "accuracy.png").exists()


def batches(seed: int) -> list[dict[str, torch.Tensor]]:
    """Batches in a structure of their own."""
    return [{"x": x, "y": y} for x, y in zip(*(t.split(16) for t in line(seed)), strict=True)]


def dict_loss(model: nn.Module, batch) -> tuple[torch.Tensor, int]:
    return functional.mse_loss(model(batch["x"]), batch["y"]), len(batch["y"])


def dict_error(model: nn.Module, batch) -> torch.Tensor:
    return absolute_error(model(batch["x"]), batch["y"])


def test_batches_of_any_structure_train_and_repeat_with_the_same_bits(tmp_path):
    task = regression(
        client_data=lambda site: batches(site.partition_id),
        validation_data=lambda site: batches(100),
        test_data=lambda site: batches(101),
        loss=None,
        batch_loss=dict_loss,
        metrics=[Metric("mean absolute error", dict_error, higher_is_better=False)],
    )
    runs = [run_task(tmp_path, task, run_name=name) for name in ("first", "second")]
    models = [torch.load(run_dir / "model.pt", weights_only=True) for run_dir in runs]
    assert torch.equal(models[0]["weight"], models[1]["weight"])
    assert (models[0]["weight"] - SLOPE.T).abs().max() < 0.2
    assert {row["num_examples"] for row in read_rows(runs[0] / "clients.csv")} == {"40"}


def test_a_callback_that_is_none_is_named_before_anything_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match=r"^callbacks: 5; allowed: a Callback each$"):
        run_federation(LocalGrid(client_app, CLIENTS), run_config(tmp_path), callbacks=[5])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("attack", ["pixel-trigger", "semantic-backdoor", "edge-case"])
def test_a_backdoors_target_that_is_no_class_is_named_as_it_was_set(tmp_path, attack):
    config = run_config(tmp_path, attack=attack, **{f"{attack}.target": 10})
    with pytest.raises(ConfigError, match=f"^{attack}.target = 10; allowed: a class, 0 to 9$"):
        run_federation(LocalGrid(client_app, CLIENTS), config)


@pytest.mark.parametrize("strategy", ["afedsv", "fedsv", "s-fedavg", "leave-one-out"])
def test_a_utility_that_a_task_does_not_define_is_named_as_it_is_set(tmp_path, strategy):
    words = f"{strategy}.utility = 'accuracy'; allowed: loss or score with this validation set"
    with pytest.raises(ConfigError, match=f"^{words}$"):
        run_task(tmp_path, regression(), strategy=strategy)


def r_squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """No mean: in batches of targets that are nearly alike it is far below 0."""
    return 1 - (outputs - targets).square().sum() / (targets - targets.mean()).square().sum()


def in_order(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of four, by their targets."""
    inputs, targets = line(seed)
    order = targets[:, 0].argsort()
    return list(zip(inputs[order].split(4), targets[order].split(4), strict=True))


def test_a_metric_that_is_no_mean_is_that_of_its_split_and_values_members(tmp_path):
    task = regression(
        validation_data=lambda site: in_order(100),
        test_data=lambda site: in_order(101),
        metrics=[Metric("r squared", r_squared)],
    )
    run_dir = run_task(tmp_path, task, strategy="afedsv", **{"afedsv.utility": "score"})
    rows = read_rows(run_dir / "rounds.csv")
    assert {row["status"] for row in rows[1:]} == {"advanced"}
    model = nn.Linear(2, 1)
    model.load_state_dict(torch.load(run_dir / "model.pt", weights_only=True))
    inputs, targets = line(101)
    expected = float(r_squared(model(inputs).detach(), targets))
    assert float(rows[-1]["test_r_squared"]) == pytest.approx(expected)
    assert expected > 0.5


def failing(site: Site):
    raise FileNotFoundError("no such file: 'test.csv'")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"loss": lambda outputs, targets: ((outputs - targets) ** 2).sum()},
            "validation_data: loss_fn gives .* a mean over the examples",
        ),
        (
            {"validation_data": lambda site: (np.array(["a"]), np.array([1]))},
            "validation_data: a NumPy array has dtype <U1; allowed: numbers",
        ),
        ({"test_data": failing}, "test_data failed: FileNotFoundError: no such file: 'test.csv'"),
        ({"model": lambda: "a model"}, r"model\(\) returned str; expected a torch.nn.Module"),
    ],
)
def test_what_a_task_gets_wrong_is_one_sentence_before_training(tmp_path, changes, sentence):
    with pytest.raises(FedIFError, match=f"task 'line': {sentence}"):
        run_task(tmp_path, regression(**changes))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"model": lambda: nn.Linear(2, 1, bias=False)}, r"model is not the server.*bias"),
        ({"name": "curve"}, "client's task is 'curve', the server's 'line'"),
    ],
)
def test_a_client_whose_task_or_model_is_another_says_so(tmp_path, other, reason):
    values = {"task": "this-app:line", "num-clients": 2, "fraction-train": 1.0, "device": "cpu"}
    values |= {"max-failed-rounds": 1, "output-dir": str(tmp_path)}
    grid = LocalGrid(task_app(regression(**other)), 2)
    with pytest.raises(TrainingFailedError, match=reason):
        run_federation(grid, RunConfig.from_run_config(values), task=regression())


class StopsAfter(Callback):
    """Ends a run in good order, once others have looked at the model of a round."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_model(self, server_round, model):
        if server_round == self.number:
            raise StopTraining("enough")


class StopsOnMetrics(StopsAfter):
    """The line of the round is written by then."""

    def on_model(self, server_round, model):
        """Go on."""

    def on_metrics(self, server_round, metrics):
        super().on_model(server_round, None)


class StopsAtRoundEnd(StopsAfter):
    def on_model(self, server_round, model):
        """Go on."""

    def on_round_end(self, server_round):
        super().on_model(server_round, None)


@pytest.mark.parametrize("stops", [StopsAfter, StopsOnMetrics, StopsAtRoundEnd])
def test_the_round_in_which_a_callback_stops_is_evaluated_and_saved(tmp_path, stops):
    """Evaluations are due in rounds 0 and 5, checkpoints after 4 and 6."""
    config = run_config(tmp_path, num_server_rounds=6, eval_every=5, checkpoint_every=4)
    callbacks = [stops(3)]
    folder = RunFolder(run_federation(LocalGrid(client_app, CLIENTS), config, callbacks=callbacks))
    rows = folder.rounds.read()
    assert [row["round"] for row in rows if row["test_accuracy"]] == ["0", "3"]
    assert folder.summary.read()["last_evaluated_round"] == 3
    going_on = config.replace(resume="auto")
    run_federation(LocalGrid(client_app, CLIENTS), going_on)
    assert [row["round"] for row in folder.rounds.read()] == [str(n) for n in range(7)]
    assert not list(folder.path.glob("attempt-*"))
    whole = run_config(tmp_path / "whole", num_server_rounds=6, eval_every=5, checkpoint_every=4)
    without_stop = RunFolder(run(whole))
    assert_same_model(folder, without_stop)


def assert_same_model(first: RunFolder, second: RunFolder) -> None:
    models = [torch.load(folder.model, weights_only=True) for folder in (first, second)]
    for name, values in models[0].items():
        assert torch.equal(values, models[1][name])
