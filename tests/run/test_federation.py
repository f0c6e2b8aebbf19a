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


def test_same_seed_same_bits(tmp_path):
    attack = "gradient-noise"
    runs = [
        run(run_config(tmp_path, attack=attack, run_name=name, num_server_rounds=2))
        for name in ("first", "second")
    ]
    models = [torch.load(run_dir / "model.pt", weights_only=True) for run_dir in runs]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    columns = ("round", "partition_id", "score", "weight_score", "weight", "train_loss")
    clients = [
        [tuple(row[c] for c in columns) for row in read_rows(run_dir / "clients.csv")]
        for run_dir in runs
    ]
    assert clients[0] == clients[1]
    other = run(run_config(tmp_path, attack=attack, seed=1, num_server_rounds=2))
    assert not torch.equal(
        torch.load(other / "model.pt", weights_only=True)["1.weight"], models[0]["1.weight"]
    )


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
    assert [(row["round"], row["round_failed"]) for row in rows] == [
        ("0", "0"),
        ("1", "1"),
        ("2", "1"),
    ]
