"""What a run with a run config writes while it goes on, and at its end."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from client_app import app as client_app
from fedif_flower import PathAttribution, load
from fedif_flower.errors import IncompleteRunError, StorageError, TrainingFailedError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.attribution import AttributionState
from fedif_flower.run.checkpoint import read_checkpoint
from fedif_flower.run.config import RunConfig
from fedif_flower.run.ending import print_summary, require_complete, require_last_round
from fedif_flower.run.federation import run_federation
from fedif_flower.run.figures import as_json_has_it, detection_auc, summarize
from fedif_flower.run.folder import RunFolder, files_of_rounds
from fedif_flower.run.live_state import LiveState
from fedif_flower.run.plots import plot_progress
from fedif_flower.run.presence import Change, RollCall
from fedif_flower.run.recorder import RunRecorder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.record import ClientReport, Round, headline
from fedif_flower.server.run import Callback, StopTraining
from fedif_flower.stages import FedAvgM
from fedif_flower.strategies import Setup
from fedif_flower.tasks.task import Metric
from tests.run.resuming import CLIENTS, recorder_of, run_config
from tests.strategies.lines import BASE, Movers, fedavg, play, point, validation


def new_recorder(output_dir: Path) -> RunRecorder:
    config = RunConfig.from_run_config({"output-dir": str(output_dir), "run-name": "run"})
    recorder = recorder_of(config)
    recorder.is_malicious = lambda node: node.partition_id % 2 == 1
    recorder.on_start(SimpleNamespace(nodes=None, scoring=None, callbacks=(), is_stopping=False))
    return recorder


def report(number: int, scores: dict[int, float], failed: int = 0, **more) -> Round:
    clients = [
        ClientReport(ClientNode(p, 100 + p), train_seconds=0.5, weight_score=c, weight=1 / 3)
        for p, c in scores.items()
    ]
    clients += [ClientReport(ClientNode(8, 108), "failed")] * failed
    return Round(number, tuple(clients), aggregation_seconds=0.25, **more)


def recorded(recorder: RunRecorder, *reports: Round) -> RunRecorder:
    """Record rounds whose accuracies are 0.1, 0.6 and 0.8."""
    accuracies = (0.1, 0.6, 0.8)
    recorder.on_metrics(0, {"test-accuracy": 0.1})
    for report in reports:
        recorder.on_asked(Round(report.round))
        recorder.on_round(report)
        recorder.on_metrics(report.round, {"test-accuracy": accuracies[min(report.round, 2)]})
    return recorder


def test_lines_are_written_as_the_run_goes_and_summed_up_by_hand(tmp_path):
    refused = ClientReport(ClientNode(9, 109), "refused", "=NaN, of course", weight=-0.0)
    first = report(1, {0: 0.3, 1: 0.0, 2: 0.2})
    first = replace(first, clients=(*first.clients, refused))
    recorder = recorded(new_recorder(tmp_path), first, report(2, {0: 0.4, 1: 0.1, 3: 0.35}))
    folder = recorder.run_dir
    rounds, clients = (read_rows(folder / name) for name in ("rounds.csv", "clients.csv"))
    assert [row["test_accuracy"] for row in rounds] == ["0.1", "0.6", "0.8"]
    assert [row["rejected"] for row in rounds] == ["0", "1", "0"]
    assert [row["partition_id"] for row in clients] == ["0", "1", "2", "9", "0", "1", "3"]
    # A spreadsheet would take such a text for a formula; numbers stay numbers.
    assert (clients[3]["rejection"], clients[3]["weight"]) == ("'=NaN, of course", "-0.0")
    assert [row["status"] for row in clients[2:5]] == ["accepted", "refused", "accepted"]
    assert clients[1]["malicious"] == "1"
    assert not (folder / "summary.json").exists()
    assert json.loads((folder / "config.json").read_text())["seed"] == 0
    run = load(folder)
    summary = summarize(run.lines("rounds"), run.lines("clients"))
    assert summary["test_accuracy"] == summary["test_accuracy_best"] == 0.8
    assert summary["test_accuracy_last_ten"] == pytest.approx(0.7)
    # Malicious: 1 in the first round, 1 and 3 in the second, of weight 1/3 each.
    assert summary["malicious_weight_share"] == pytest.approx(0.5)
    # Honest 0.4 (0), 0.2 (2); malicious 0.1 (1), 0.35 (3): 3 of 4 pairs are in order.
    assert summary["detection_auc"] == pytest.approx(0.75)
    assert summary["train_seconds_total"] == pytest.approx(3.0)
    assert (summary["accepted"], summary["rejected"], summary["failed"]) == (6, 1, 0)


def test_the_last_ten_rounds_are_no_earlier_ones_where_few_are_evaluated():
    evaluated = {0: 0.0, 5: 0.1, 10: 0.2, 15: 0.3, 20: 0.4, 25: 0.5, 30: 0.6}
    others = {"status": "ok", "accepted": 1, "rejected": 0, "failed": 0, "round_failed": 0}
    rounds = [{"round": n, "test_accuracy": evaluated.get(n), **others} for n in range(31)]
    assert summarize(rounds, [])["test_accuracy_last_ten"] == pytest.approx(0.55)


def test_figures_of_the_model_before_the_first_round_are_nobody_s_result():
    """Every tenth round is evaluated, and the run ends in the third."""
    others = {"status": "ok", "accepted": 1, "rejected": 0, "failed": 0, "round_failed": 0}
    rounds = [{"round": n, **others} for n in range(4)]
    rounds[0] |= {"test_accuracy": 0.1, "validation_accuracy": 0.2}
    figures = summarize(rounds, [])
    assert (figures["test_accuracy"], figures["validation_accuracy"]) == (None, None)
    assert figures["last_evaluated_round"] == 0


def test_a_malicious_client_that_scores_as_an_honest_one_is_told_half():
    """Malicious are 1 and 3: of their pairs with 0 and 2 three are in order, and (1, 0) is even."""
    lines = []
    for client_id, score in enumerate([0.25, 0.25, 0.5, 0.125]):
        lines.append({"client_id": client_id, "weight_score": score, "malicious": client_id % 2})
    assert detection_auc(lines) == 3.5 / 4


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # Malicious are 1 and 3: of their pairs with 0 and 2, all but (3, 0) are in order.
        ([0.3, -math.inf, math.inf, 0.35], 0.75),
        # 1 has no score: 3 against 0 and 2.
        ([0.3, math.nan, math.inf, 0.35], 0.5),
        ([0.3, math.nan, math.inf, math.nan], None),
    ],
)
def test_scores_that_are_no_finite_numbers_end_no_run(scores, expected):
    lines = []
    for client_id, score in enumerate(scores):
        is_malicious = client_id % 2 == 1
        lines.append({"client_id": client_id, "weight_score": score, "malicious": is_malicious})
    assert detection_auc(lines) == expected


@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize("undefined", [1, 2, 3])
def test_the_best_value_of_a_metric_is_no_nan_wherever_it_stands(undefined, higher_is_better):
    others = {"status": "ok", "accepted": 1, "rejected": 0, "failed": 0, "round_failed": 0}
    rounds = [{"round": n, "test_auc": 0.1 * n, **others} for n in range(4)]
    rounds[undefined]["test_auc"] = math.nan
    metric = Metric("auc", lambda *_: 0.0, higher_is_better=higher_is_better)
    figures = summarize(rounds, [], [metric])["metrics"]["auc"]
    known = [n for n in (1, 2, 3) if n != undefined]
    best = max(known) if higher_is_better else min(known)
    assert figures["test_best"] == pytest.approx(0.1 * best)
    # It was looked at on the test split alone, and is told all the same.
    assert figures["validation"] is None


def test_figures_of_an_earlier_model_than_the_last_say_so(tmp_path):
    """The evaluation of the last round's model failed."""
    recorder = recorded(new_recorder(tmp_path), report(1, {0: 0.4}), report(2, {0: 0.4}))
    recorder.on_round(report(3, {0: 0.4}))
    recorder.on_metrics(3, {})
    summary = recorder.finish({"w": torch.zeros(1)})
    assert (summary["rounds"], summary["last_evaluated_round"]) == (3, 2)
    page = recorder.folder.report.read_text()
    assert "| last evaluated round | 2 |" in page


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_became_nan_is_shown_by_report_and_command(tmp_path, capsys, value):
    recorder = new_recorder(tmp_path)
    recorder.metrics = [Metric("auc", lambda *_: 0.0)]
    recorder.evaluation.columns += ["test_auc", "validation_auc"]
    recorder.folder.rounds.begin(recorder.evaluation.columns)
    recorded(recorder, report(1, {0: 0.4}))
    recorder.on_round(report(2, {0: 0.4}))
    recorder.on_metrics(2, {"test-auc": value, "validation-auc": 0.75})
    summary = recorder.finish({"w": torch.zeros(1)})
    assert summary["metrics"]["auc"]["not_finite"] == ["test"]
    print_summary(recorder.folder.path)
    for shown in (recorder.folder.report.read_text(), capsys.readouterr().out):
        (line,) = [line for line in shown.splitlines() if "test auc" in line]
        assert "not a finite number" in line
        (line,) = [line for line in shown.splitlines() if "validation auc" in line]
        assert "0.75" in line


def test_a_figure_that_is_no_number_is_none_in_the_summary(tmp_path):
    """JSON has no word for NaN: a browser could not read the file."""
    recorder = recorded(new_recorder(tmp_path), report(1, {0: 0.4}))
    recorder.on_round(report(2, {0: 0.4}))
    recorder.on_metrics(2, {"test-accuracy": 0.8, "attack-success": math.nan})
    summary = recorder.finish({"w": torch.zeros(1)})
    text = recorder.folder.summary.path.read_text()
    assert json.loads(text, parse_constant=pytest.fail)["attack_success"] is None
    assert (summary["attack_success"], summary["test_accuracy"]) == (None, 0.8)
    figures = {"a": [1.5, math.inf, {"b": math.nan}], "c": "nan", "d": True}
    assert as_json_has_it(figures) == {"a": [1.5, None, {"b": None}], "c": "nan", "d": True}


def test_failed_rounds_are_counted_and_shown(tmp_path, capsys):
    # One of three answered in the last round: the model moved on, but most clients failed.
    rounds = report(1, {-1: 0.3, 1: 0.1}), report(2, {1: 0.4}, failed=2)
    recorder = recorded(new_recorder(tmp_path / "a[/b]"), *rounds)  # No markup, as it seems.
    recorder.finish({"w": torch.zeros(1)})
    print_summary(recorder.run_dir)
    printed = capsys.readouterr().out
    assert "rounds that failed │ 1, the last" in " ".join(printed.split())
    assert f"Report: {tmp_path}/a[/b]/run/report.md\n" in printed
    assert "| rounds that failed | 1, the last among them |" in recorder.folder.report.read_text()
    with pytest.raises(TrainingFailedError, match="the last round failed, as 1 of 2 did"):
        require_last_round(recorder.run_dir)


def test_a_run_that_lost_a_member_is_incomplete_and_ends_so(tmp_path, monkeypatch, capsys):
    gone = Change(ClientNode(2, 102, name="ada"), "offline", 1.5e9)  # From round 2 of 5 on.
    rounds = [report(1, {0: 0.3, 1: 0.1, 2: 0.2}, num_online=2)]
    rounds += [report(t, {0: 0.3, 1: 0.1}, num_online=2) for t in range(2, 6)]
    news = {2: [gone]}
    monkeypatch.setattr(RollCall, "call", lambda _, current, __: news.get(current.round, []))
    recorder = recorded(new_recorder(tmp_path), *rounds)  # Its config plans 100 rounds.
    summary = recorder.finish({"w": torch.zeros(1)})
    told = (
        "1 of 3 members took part in less than 50 % of their turns: ada (20 %; last seen: round 1, "
        "2017-07-14 02:40:00 UTC)."
    )
    few = "Only 5 of 100 rounds are there."
    assert summary["completeness"]["reasons"] == [few, told]
    print_summary(recorder.run_dir)
    assert f"Incomplete: {few} {told}" in capsys.readouterr().out
    page = recorder.folder.report.read_text()
    assert f"Incomplete: {few} {told}" in " ".join(page.split())
    assert "+oooo" in page
    (line,) = read_rows(recorder.run_dir / "attendance.csv")
    assert (line["round"], line["presence"]) == ("2", "offline")
    with pytest.raises(IncompleteRunError, match="ada") as error:
        require_complete(recorder.run_dir)
    assert error.value.exit_code == 3


def test_news_of_a_round_that_an_error_ended_are_told_with_the_next(tmp_path, monkeypatch):
    gone = Change(ClientNode(2, 102, name="ada"), "offline", 1.5e9)
    news = [[], [gone], []]  # A roll call tells what is news once.
    monkeypatch.setattr(RollCall, "call", lambda *_: news.pop(0))
    recorder = recorded(new_recorder(tmp_path), report(1, {0: 0.3, 2: 0.2}))
    recorder.on_asked(Round(2))  # And no round 2 comes of it.
    recorded(recorder, report(2, {0: 0.3}))
    (line,) = read_rows(recorder.run_dir / "attendance.csv")
    assert (line["round"], line["client_id"], line["presence"]) == ("2", "102", "offline")


NODES = [ClientNode(0, 70, name="Graz"), ClientNode(1, 71), ClientNode(2, 72)]


def test_it_says_who_was_asked_and_who_answered(tmp_path):
    live = LiveState(RunFolder(tmp_path), ExitStack())
    live.on_asked(Round(4, members=NODES[:2], at_work=NODES[2:], online=NODES, paused={9, 8}))
    live.note_reply(NODES[0], is_error=False)
    live.note_reply(NODES[1], is_error=True)
    live.write()
    said = RunFolder(tmp_path).live.read()
    assert said["asked"][0] == {"client_id": 70, "partition_id": 0, "name": "Graz"}
    assert [node["client_id"] for node in said["at_work"]] == [72]
    expected = {"phase": "training", "round": 4, "num_asked": 2, "num_answered": 2}
    expected |= {"num_online": 3, "online": [70, 71, 72], "paused": [8, 9]}
    assert said.items() >= (expected | {"answered": [70], "failed": [71]}).items()


@pytest.mark.parametrize(
    ("error", "phase", "reason"),
    [
        (None, "finished", None),
        (StorageError("disk \x1b für Köln full"), "failed", "disk ? für Köln full"),
        (KeyboardInterrupt(), "stopped", None),
    ],
)
def test_its_last_word_is_how_the_run_ended(tmp_path, error, phase, reason):
    with suppress(StorageError, KeyboardInterrupt), ExitStack() as stack:
        strategy = SimpleNamespace(intake=SimpleNamespace(on_reply=[]))
        LiveState(RunFolder(tmp_path), stack).on_start(strategy)
        if error is not None:
            raise error
    said = RunFolder(tmp_path).live.read()
    assert (said["phase"], said.get("reason")) == (phase, reason)


def test_a_task_s_first_metric_is_shown_before_its_accuracy(tmp_path, pictures):
    figures = {"test_accuracy": 0.5, "test_loss": 1.25, "test_f1": 0.25, "test_auc": 0.75}
    assert headline(figures) == "test f1 0.25"
    assert headline({"test_accuracy": 0.5, "test_loss": 1.25}) == "test accuracy 50.0%"
    assert headline({"test_loss": 1.25}) == "test loss 1.25"
    assert headline({"validation_f1": 0.25}) == ""
    rounds = [{"round": number, **figures} for number in range(2)]
    picture = plot_progress(rounds, RunFolder(tmp_path), title="")
    assert picture.name == "metric.png"


class Stops(Callback):
    """Ends a run once it is told of the metrics of its second round."""

    def on_metrics(self, server_round, metrics):
        if server_round == 2:
            raise StopTraining("enough")


def test_the_checkpoint_of_a_run_that_a_callback_ended_has_its_last_evaluation(tmp_path):
    config = run_config(tmp_path, checkpoint_every=5, eval_every=5)
    folder = RunFolder(run_federation(LocalGrid(client_app, CLIENTS), config, callbacks=[Stops()]))
    [last] = [row for row in folder.rounds.read() if row["round"] == "2"]
    [path] = files_of_rounds(folder.checkpoints).values()
    kept = read_checkpoint(path).lines["rounds"][-1]
    assert kept["round"] == 2
    assert str(kept["validation_loss"]) == last["validation_loss"] != ""


class SavesAndTakesBack(Callback):
    """Takes the model of round 2 back as an evaluation; has a recorder save each round."""

    def __init__(self, recorder: RunRecorder) -> None:
        self.recorder = recorder

    def on_start(self, strategy):
        self.recorder.strategy = strategy

    def on_model(self, server_round, model):
        if server_round == 2:
            model.take_back()

    def on_round_end(self, server_round):
        self.recorder.on_round_end(server_round)


def test_a_checkpoint_does_not_remember_a_step_that_was_taken_back(tmp_path):
    settings = {"output-dir": str(tmp_path), "run-name": "run", "checkpoint-every": 1}
    recorder = recorder_of(RunConfig.from_run_config(settings))
    held_out = validation()
    attribution = PathAttribution(held_out, "trapezoid")
    recorder._part_states = {"attribution": AttributionState(attribution, {})}
    base = BASE | {"setup": Setup(device="cpu", trainable_keys=held_out.parameter_names)}
    callbacks = [SavesAndTakesBack(recorder), attribution]
    strategy = fedavg(held_out, stages=[FedAvgM(0.5, 0.5)], callbacks=callbacks, **base)
    play(strategy, point(), Movers([[1.0, 1.0], [1.0, 1.0]]), 2)
    checkpoint = recorder.checkpoints.find("auto")
    assert checkpoint.server_round == 2
    assert len(checkpoint.records["attribution"]["carried"]) == 1  # Of round 1 alone.
