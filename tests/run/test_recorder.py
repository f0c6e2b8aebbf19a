from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from fedif_flower.errors import (
    IncompleteRunError,
    StorageError,
    TrainingFailedError,
)
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.figures import summarize
from fedif_flower.run.recorder import RunRecorder
from fedif_flower.run.report import print_summary, require_complete, require_last_round
from fedif_flower.run.rows import read_rows
from fedif_flower.strategies.presence import Change
from fedif_flower.strategies.reports import ClientReport, RoundReport


def run_config(output_dir: Path, **overrides) -> RunConfig:
    settings = {"output-dir": str(output_dir), "num-server-rounds": 2, "run-name": "run"}
    return RunConfig.from_run_config(default_run_config() | settings | overrides)


def report(server_round: int, contributions: dict[int, float], rejected: str = "") -> RoundReport:
    share = 1 / len(contributions)
    clients = [
        ClientReport(
            ClientNode(p, 100 + p), num_examples=5, train_seconds=0.5, weight_score=c, weight=share
        )
        for p, c in contributions.items()
    ]
    if rejected:
        clients.append(ClientReport(ClientNode(9, 109), "refused", rejected))
    return RoundReport(
        round=server_round,
        clients=tuple(clients),
        num_accepted=len(contributions),
        num_rejected=bool(rejected),
        round_seconds=2.0,
        aggregation_seconds=0.25,
        evaluations=1,
    )


def measured(
    test_loss: float, test_accuracy: float, validation_loss: float, validation_accuracy: float
) -> dict[str, float]:
    return {
        "test-loss": test_loss,
        "test-accuracy": test_accuracy,
        "validation-loss": validation_loss,
        "validation-accuracy": validation_accuracy,
    }


def recorded(tmp_path: Path, rejected: str = "NaN, of course") -> RunRecorder:
    recorder = RunRecorder(
        run_config(tmp_path), is_malicious=lambda node: node.partition_id % 2 == 1
    )
    recorder.on_metrics(0, measured(2.0, 0.1, 2.0, 0.1))
    recorder.on_round(report(1, {0: 0.3, 1: 0.0, 2: 0.2}, rejected=rejected))
    recorder.on_metrics(1, measured(1.0, 0.6, 1.0, 0.5))
    recorder.on_round(report(2, {0: 0.4, 1: 0.1, 3: 0.35}))
    recorder.on_metrics(2, measured(0.5, 0.8, 0.5, 0.7))
    return recorder


def test_lines_are_written_as_the_run_goes(tmp_path):
    recorder = recorded(tmp_path)
    rounds, clients = (read_rows(recorder.run_dir / name) for name in ("rounds.csv", "clients.csv"))
    assert [row["test_accuracy"] for row in rounds] == ["0.1", "0.6", "0.8"]
    assert [row["rejected"] for row in rounds] == ["0", "1", "0"]
    assert [row["partition_id"] for row in clients] == ["0", "1", "2", "9", "0", "1", "3"]
    assert clients[3]["rejection"] == "NaN, of course"
    assert [row["status"] for row in clients[2:5]] == ["accepted", "refused", "accepted"]
    assert clients[1]["malicious"] == "1"
    assert not (recorder.run_dir / "summary.json").exists()
    assert json.loads((recorder.run_dir / "config.json").read_text())["seed"] == 0


def test_summary_by_hand(tmp_path):
    recorder = recorded(tmp_path)
    summary = summarize(recorder.lines["rounds"], recorder.lines["clients"])
    assert summary["test_accuracy"] == 0.8
    assert summary["test_accuracy_last_ten"] == pytest.approx(0.7)
    assert summary["test_accuracy_best"] == 0.8
    # Malicious: 1 in the first round, 1 and 3 in the second, of weight 1/3 each.
    assert summary["malicious_weight_share"] == pytest.approx(0.5)
    # Honest 0.4 (0), 0.2 (2); malicious 0.1 (1), 0.35 (3): 3 of 4 pairs are in order.
    assert summary["detection_auc"] == pytest.approx(0.75)
    assert summary["aggregation_seconds_per_round"] == pytest.approx(0.25)
    assert summary["train_seconds_total"] == pytest.approx(3.0)
    assert (summary["accepted"], summary["rejected"], summary["failed"]) == (6, 1, 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("name", ["clients.csv", "rounds.csv"])
def test_a_full_disk_is_one_sentence(tmp_path, name):
    recorder = RunRecorder(run_config(tmp_path))
    (recorder.run_dir / name).unlink()
    (recorder.run_dir / name).symlink_to("/dev/full")

    def a_round() -> None:
        recorder.on_round(report(1, {0: 0.3}))
        recorder.on_metrics(1, measured(1.0, 0.6, 1.0, 0.5))

    with pytest.raises(StorageError, match=rf"^cannot write .*/{name}: No space left on device$"):
        a_round()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
def test_a_cell_that_a_spreadsheet_would_execute_is_quoted(tmp_path, start):
    recorder = RunRecorder(run_config(tmp_path))
    formula = f"{start}HYPERLINK(1)"
    clients = (
        ClientReport(ClientNode(0, 100), score=-0.5, weight=-0.25, note=formula),
        ClientReport(ClientNode(1, 101), "refused", formula),
    )
    recorder.on_round(RoundReport(1, clients, 1, 1))
    accepted, refused = read_rows(recorder.run_dir / "clients.csv")
    assert accepted["note"] == refused["rejection"] == "'" + formula
    assert (accepted["score"], accepted["weight"]) == ("-0.5", "-0.25")  # numbers stay numbers


def test_failed_rounds_and_unnamed_members_are_counted_and_shown(tmp_path, capsys):
    recorder = RunRecorder(run_config(tmp_path))
    recorder.on_metrics(0, measured(2.0, 0.1, 2.0, 0.1))
    recorder.on_round(report(1, {-1: 0.3, 1: 0.1}))
    recorder.on_metrics(1, measured(1.0, 0.6, 1.0, 0.5))
    # One of three answered: the model moved on, but most clients failed.
    recorder.on_round(dataclasses.replace(report(2, {1: 0.4}), num_failed=2))
    recorder.on_metrics(2, measured(0.5, 0.8, 0.5, 0.7))
    summary = recorder.finish({"w": torch.zeros(1)})
    counted = {k: summary[k] for k in ("failed_rounds", "last_round_failed", "unnamed_members")}
    assert counted == {"failed_rounds": 1, "last_round_failed": True, "unnamed_members": 1}
    print_summary(recorder.run_dir)
    printed = " ".join(capsys.readouterr().out.split())
    assert "rounds that failed │ 1, the last among them" in printed
    assert "members that named no partition │ 1" in printed
    assert (
        "| rounds that failed | 1, the last among them |"
        in (recorder.run_dir / "report.md").read_text()
    )
    with pytest.raises(TrainingFailedError, match="the last round failed, as 1 of 2 did"):
        require_last_round(recorder.run_dir)


def gone_after_a_round(tmp_path, **overrides) -> RunRecorder:
    """Three members, of which one is offline from round 2 of 5 on."""
    settings = {"num-server-rounds": 5, **overrides}
    recorder = RunRecorder(run_config(tmp_path, **settings))
    recorder.on_metrics(0, {})
    for number in range(1, 6):
        told = report(number, {0: 0.3, 1: 0.1, 2: 0.2} if number == 1 else {0: 0.3, 1: 0.1})
        gone = Change(ClientNode(2, 102, name="ada"), "offline", 1.5e9)
        changes = (gone,) if number == 2 else ()
        recorder.on_round(dataclasses.replace(told, num_online=2, changes=changes))
        recorder.on_metrics(number, {})
    return recorder


def test_a_run_that_lost_a_member_is_incomplete_and_ends_so(tmp_path, capsys):
    recorder = gone_after_a_round(tmp_path)
    summary = recorder.finish({"w": torch.zeros(1)})
    told = (
        "1 of 3 members took part in less than 50 % of their turns: ada (20 %; last seen: round 1, "
        "2017-07-14 02:40:00 UTC)."
    )
    assert summary["completeness"]["verdict"] == "incomplete"
    assert summary["completeness"]["reasons"] == [told]
    print_summary(recorder.run_dir)
    assert f"Incomplete: {told}" in capsys.readouterr().out
    page = (recorder.run_dir / "report.md").read_text()
    assert f"Incomplete: {told}" in " ".join(page.split())
    assert "+oooo" in page
    (line,) = read_rows(recorder.run_dir / "attendance.csv")
    assert (line["round"], line["presence"]) == ("2", "offline")
    with pytest.raises(IncompleteRunError, match="ada") as error:
        require_complete(recorder.run_dir)
    assert error.value.exit_code == 3
