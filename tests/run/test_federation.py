"""Whole federations in this process, by a run config."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message

from client_app import app as client_app
from fedif_flower.errors import TrainingFailedError
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid


def run_config(output_dir: Path, **overrides) -> RunConfig:
    settings = {
        "num-clients": 10,
        "fraction-train": 0.5,
        "num-server-rounds": 3,
        "local-epochs": 1,
        "output-dir": str(output_dir),
        "device": "cpu",
    }
    overrides = {key.replace("_", "-"): value for key, value in overrides.items()}
    return RunConfig.from_run_config(default_run_config() | settings | overrides)


def run(config: RunConfig, **grid) -> Path:
    return run_federation(LocalGrid(client_app, config.num_clients, **grid), config)


def test_a_run_learns_and_leaves_everything_behind(tmp_path):
    rows = []
    config = run_config(
        tmp_path, attack="label-noise", num_server_rounds=15, eval_every=5, local_epochs=3
    )
    run_dir = run_federation(LocalGrid(client_app, 10), config, rows.append)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.8
    assert summary["detection_auc"] > 0.8
    assert summary["malicious_weight_share"] < 0.5
    assert [row.round for row in rows] == list(range(16))
    evaluated = [row.round for row in rows if "test_accuracy" in row.metrics]
    assert evaluated == [0, 5, 10, 15]
    clients = read_rows(run_dir / "clients.csv")
    assert len(clients) == 15 * 5
    assert {row["malicious"] for row in clients} == {"0", "1"}
    model = torch.load(run_dir / "model.pt", weights_only=True)
    assert sum(v.numel() for v in model.values()) == 64 * 64 + 64 + 64 * 10 + 10


def test_a_backdoors_success_is_in_rounds_summary_and_report(tmp_path):
    own = {"attack": "pixel-trigger", "malicious_fraction": 0.5, "strategy": "fedavg"}
    run_dir = run(run_config(tmp_path, num_server_rounds=4, eval_every=2, **own))
    rows = read_rows(run_dir / "rounds.csv")
    assert [bool(row["attack_success"]) for row in rows] == [True, False, True, False, True]
    assert float(rows[0]["attack_success"]) < 0.5 < float(rows[-1]["attack_success"])
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["attack_success"] == float(rows[-1]["attack_success"])
    assert "| attack success rate |" in (run_dir / "report.md").read_text()


@pytest.mark.parametrize("attack", ["gradient-noise", "min-max"])
def test_same_seed_same_bits(tmp_path, attack):
    def model(seed: int, name: str) -> dict[str, torch.Tensor]:
        config = run_config(tmp_path, attack=attack, run_name=name, num_server_rounds=2, seed=seed)
        return torch.load(run(config) / "model.pt", weights_only=True)

    first, second, other = model(0, "first"), model(0, "second"), model(1, "other")
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["1.weight"], other["1.weight"])


def test_absurd_metrics_are_left_out(tmp_path):
    absurd = itertools.cycle([1.7e308, -1.7e308, 2**63 - 1])

    def boasting(message: Message, context: Context) -> Message:
        reply, value = client_app(message, context), next(absurd)
        for metrics in reply.content.metric_records.values():
            metrics.update({"train-loss": value, "train-seconds": value, "more": value})
        return reply

    config = run_config(tmp_path, fraction_train=1.0)
    run_dir = run_federation(LocalGrid(boasting, config.num_clients), config)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["accepted"], summary["rejected"]) == (30, 0)
    rows = read_rows(run_dir / "clients.csv")
    assert {(row["train_seconds"], row["train_loss"]) for row in rows} == {("", "")}


def test_clients_that_always_fail_end_the_run_with_an_error(tmp_path):
    config = run_config(tmp_path, max_failed_rounds=2)
    with pytest.raises(TrainingFailedError, match="2 rounds in a row"):
        run(config, silent=range(10))
    assert not (config.run_dir / "summary.json").exists()
    # Half of the ten are asked a round: in the third, more than five failed twice in a row.
    rows = read_rows(config.run_dir / "rounds.csv")
    assert [row["round_failed"] for row in rows] == ["0", "1", "1"]
