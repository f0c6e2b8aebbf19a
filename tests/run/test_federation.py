"""Whole federations in this process, by a run config."""

from __future__ import annotations

import pytest

from client_app import app as client_app
from fedif_flower.errors import TrainingFailedError
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.provenance import code_hash, tensors_hash
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from tests.run.resuming import CLIENTS, run, run_config


def test_a_run_learns_and_leaves_everything_behind(tmp_path):
    rows = []
    own = {"num_server_rounds": 15, "eval_every": 5, "local_epochs": 3, "num_clients": 10}
    config = run_config(tmp_path, **own)
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
    origin, server = folder.provenance.read(), load_task(config)
    assert origin["settings_sha256"] == server.config.digest()
    assert origin["validation_sha256"] == tensors_hash(server.validation_data)
    assert origin["code_sha256"] == code_hash()
    said = folder.live.read()
    assert (said["phase"], said["round"], said["num_answered"]) == ("finished", 15, 5)
    assert {n["client_id"] for n in said["asked"]} == set(said["answered"])
    assert "state.json" not in folder.results()


def test_a_backdoors_success_is_in_rounds_summary_and_report(tmp_path):
    own = {"attack": "pixel-trigger", "malicious_fraction": 0.5, "strategy": "fedavg"}
    folder = RunFolder(run(run_config(tmp_path, num_server_rounds=4, eval_every=2, **own)))
    rows = folder.rounds.read()
    assert [bool(row["attack_success"]) for row in rows] == [True, False, True, False, True]
    assert float(rows[0]["attack_success"]) < 0.5 < float(rows[-1]["attack_success"])
    assert folder.summary.read()["attack_success"] == float(rows[-1]["attack_success"])
    assert "| attack success rate |" in folder.report.read_text()


def test_clients_that_always_fail_end_the_run_with_an_error(tmp_path):
    config = run_config(tmp_path, max_failed_rounds=2)
    with pytest.raises(TrainingFailedError, match="2 rounds in a row"):
        run(config, LocalGrid(client_app, CLIENTS, silent=range(CLIENTS)))
    assert not (config.run_dir / "summary.json").exists()
    rows = read_rows(config.run_dir / "rounds.csv")
    assert rows[-1]["round_failed"] == "1"
