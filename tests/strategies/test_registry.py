"""Every strategy that a run can name, with the real clients, on digits."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message

from client_app import app as client_app
from fedif_flower.messages.arrays import pack_array
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.registry import STRATEGIES

PROJECT = Path(__file__).parents[2]
NUM_CLIENTS = 10
# Coalitions of five clients: 32, the empty one included.
MOST_EVALUATIONS = {
    "fedif": 1,
    "influence-descent": 9,
    "autobant": 80,
    "afedsv": 32,
    "fedsv": 32,
    "s-fedavg": 32,
    "leave-one-out": 6,
}


def config(output_dir: Path, strategy: str, **overrides) -> RunConfig:
    settings = {
        "strategy": strategy,
        "num-clients": NUM_CLIENTS,
        "fraction-train": 0.5,
        "num-server-rounds": 2,
        "local-epochs": 1,
        "attack": "label-noise",
        "output-dir": str(output_dir),
        "device": "cpu",
    }
    return RunConfig.from_run_config(default_run_config() | settings | overrides)


def run(chosen: RunConfig, clients=client_app) -> tuple[dict, dict[str, torch.Tensor], list[dict]]:
    """Run a federation; return its summary, its model and the lines of ``clients.csv``."""
    run_dir = run_federation(LocalGrid(clients, NUM_CLIENTS), chosen)
    summary = json.loads((run_dir / "summary.json").read_text())
    model = torch.load(run_dir / "model.pt", weights_only=True)
    return summary, model, read_rows(run_dir / "clients.csv")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_name_runs(tmp_path, strategy):
    summary, model, clients = run(config(tmp_path, strategy))
    assert summary["config"]["strategy"] == strategy
    assert (summary["rounds"], summary["accepted"], summary["rejected"]) == (2, 10, 0)
    assert 0.1 < summary["test_accuracy"] <= 1.0
    assert all(torch.isfinite(value).all() for value in model.values())
    evaluations = summary["evaluations_per_round"]
    assert 0 <= evaluations <= MOST_EVALUATIONS.get(strategy, 0)
    assert (evaluations > 0) == (strategy in MOST_EVALUATIONS)
    weights = [float(row["weight"]) for row in clients if row["weight"]]
    assert all(weight >= 0 for weight in weights)


def test_krum_is_told_the_assumed_share(tmp_path, caplog):
    untold = config(
        tmp_path, "krum", **{"malicious-fraction": 0.6}, **{"assumed-malicious-fraction": 0.2}
    )
    told = config(tmp_path, "krum", **{"malicious-fraction": 0.6})
    with caplog.at_level(logging.WARNING, "fedif_flower"):
        run(untold)
        assert "2f + 2 < m" not in caplog.text
        run(told)
    assert "f = 3 of m = 5" in caplog.text


class Spoiler:
    """The real clients, of whom partition 1 sends a model full of ``value``, ``rounds`` long."""

    def __init__(self, value: float, rounds: int = 100) -> None:
        self.value = value
        self.rounds = rounds

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if context.node_config["partition-id"] == 1 and self._spoils(message):
            (name,) = reply.content.array_records
            reply.content[name] = ArrayRecord(
                {
                    key: pack_array(np.full_like(array.numpy(), self.value))
                    for key, array in reply.content.array_records[name].items()
                }
            )
        return reply

    def _spoils(self, message: Message) -> bool:
        if message.metadata.message_type != "train":
            return False
        server_round = message.content.config_records["config"]["server-round"]
        return int(server_round) <= self.rounds


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_reply_near_the_end_of_float32_is_refused(tmp_path, strategy):
    chosen = config(tmp_path, strategy, **{"fraction-train": 1.0})
    summary, model, clients = run(chosen, Spoiler(3e38))
    assert (summary["accepted"], summary["rejected"], summary["failed"]) == (18, 2, 0)
    refused = [row for row in clients if row["rejection"]]
    assert {row["partition_id"] for row in refused} == {"1"}
    assert all("3e+38" in row["rejection"] for row in refused)
    assert all(torch.isfinite(value).all() for value in model.values())
    assert summary["test_accuracy"] > 0.1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_largest_reply_that_is_let_in_does_not_stop_the_server(tmp_path, strategy):
    chosen = config(tmp_path, strategy, **{"fraction-train": 1.0, "num-server-rounds": 6})
    summary, model, clients = run(chosen, Spoiler(9e14, rounds=1))
    assert summary["rounds"] == 6
    assert [row["rejection"] for row in clients if row["round"] == "1"] == [""] * 10
    assert all(torch.isfinite(value).all() for value in model.values())


@pytest.mark.parametrize("strategy", ["afedsv", "fedsv", "s-fedavg", "leave-one-out"])
def test_nor_do_the_losses_that_such_replies_make(tmp_path, strategy):
    settings = {"fraction-train": 0.5, "num-server-rounds": 6, f"{strategy}.utility": "loss"}
    summary, model, _ = run(config(tmp_path, strategy, **settings), Spoiler(9e14))
    assert summary["rounds"] == 6
    assert all(torch.isfinite(value).all() for value in model.values())


@pytest.mark.parametrize(
    ("strategy", "most"),
    # AFedSV's contributions begin at 0.5, and one bad round takes 30 % of that.
    [("fedif", 0.0), ("leave-one-out", 0.0), ("krum", 0.0), ("rfa", 1e-3), ("afedsv", 0.07)],
)
def test_who_destroys_the_model_has_the_least_weight(tmp_path, strategy, most):
    chosen = config(tmp_path, strategy, **{"fraction-train": 1.0, "num-server-rounds": 1})
    _, _, clients = run(chosen, Spoiler(9e14))
    weights = {row["partition_id"]: float(row["weight"]) for row in clients}
    assert weights["1"] == min(weights.values())
    assert weights["1"] <= most
