"""Each example runs, and finds what it says it finds; in this process but for one."""

from __future__ import annotations

import pytest
import torch

from fedif_consortium.statement.account import settle
from fedif_consortium.statement.records import read_run
from fedif_flower.run.rows import read_rows
from hospitals import task as hospitals
from quickstart import task as quickstart
from tests.examples.apps import run, weights
from time_series import task as time_series

pytestmark = pytest.mark.all
FREE_RIDER = 3  # The hospital that seed 0 chooses.


def test_the_hospitals_statement_finds_each(tmp_path):
    records = read_run(run("hospitals", tmp_path, device="cpu"))
    members = {member.partition_id: member for member in settle(records).members}
    verdicts = {partition_id: member.verdict for partition_id, member in members.items()}
    assert verdicts[hospitals.UNIT_ERROR].level == "quarantine"
    assert members[hospitals.UNIT_ERROR].contribution < 0
    assert members[FREE_RIDER].contribution == 0
    assert "exactly 0" in verdicts[FREE_RIDER].reason
    for copied in (hospitals.COPY, hospitals.ORIGINAL):
        assert verdicts[copied].level == "review"
        assert "same own part" in verdicts[copied].reason
    found = {hospitals.UNIT_ERROR, FREE_RIDER, hospitals.COPY, hospitals.ORIGINAL}
    assert {i for i, verdict in verdicts.items() if verdict.level != "accept"} == found
    last = records.folder.rounds.read()[-1]
    assert float(last["test_accuracy"]) > 0.9


def test_the_stations_learn_and_the_shifted_one_hardly_counts(tmp_path):
    run_dir = run("time-series", tmp_path, device="cpu", num_server_rounds=3)
    rounds = read_rows(run_dir / "rounds.csv")
    assert float(rounds[-1]["test_loss"]) < 0.5 * float(rounds[0]["test_loss"])
    counted = weights(run_dir)
    assert counted.pop(time_series.SHIFTED) < 0.1 * min(counted.values())


def test_the_quickstart_learns_and_the_mislabelled_have_the_lowest_scores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # It writes its model where it runs.
    torch.manual_seed(0)
    run_dir = run("quickstart", tmp_path, num_clients=10)
    losses = [float(row["validation_loss"]) for row in read_rows(run_dir / "rounds.csv")]
    assert losses[-1] < 0.5 * losses[0]
    scores = {
        int(row["client_id"]) - 1000: float(row["weight_score"])
        for row in read_rows(run_dir / "clients.csv")
        if row["weight_score"]
    }
    assert set(sorted(scores, key=scores.__getitem__)[:2]) == set(quickstart.MISLABELLED)
