"""Flower's quickstart app learns with FedIF in place of FedAvg, beside clients that do harm."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch.nn.functional import cross_entropy

from fedif_flower import FedIF, Validation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.strategies.callbacks import OnRound
from fedif_flower.strategies.reports import RoundReport
from quickstart import task
from tests.integration.quickstart.hostile import BAD_INDEX, NOT_A_NUMBER, Net, app

NUM_CLIENTS, NUM_ROUNDS = 5, 5
RUN_CONFIG = {"batch-size": 32, "local-epochs": 2}


def batch_loss(model, batch):
    return cross_entropy(model(batch["img"]), batch["label"]), len(batch["label"])


def learn(grid: LocalGrid) -> None:
    """What the quickstart's ``server_app.py`` does, with FedIF; then look at what came of it."""
    for context in grid.contexts.values():
        context.run_config.update(RUN_CONFIG)
    torch.manual_seed(0)
    model, reports = Net(), []
    validation_loader, test_loader = task.load_held_out(batch_size=32)
    strategy = FedIF(
        Validation(model, validation_loader, batch_loss=batch_loss, device="cpu"),
        fraction_evaluate=1.0,
        callbacks=[OnRound(reports.append)],
        setup=Setup(device="cpu", max_paused_turns=0),
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"lr": 0.05}),
        num_rounds=NUM_ROUNDS,
    )
    check(model, result, reports, test_loader)


def check(model: Net, result, reports: list[RoundReport], test_loader) -> None:
    before = task.test(model, test_loader, "cpu")[1]
    model.load_state_dict(result.arrays.to_torch_state_dict())
    after = task.test(model, test_loader, "cpu")[1]
    assert before < 0.3
    assert after > 0.7
    assert model.position_ids.tolist() == list(range(10))
    assert len(reports) == NUM_ROUNDS
    hostile = {1000 + NOT_A_NUMBER: "NaN", 1000 + BAD_INDEX: "position_ids"}
    for report in reports:
        reasons = {c.node.node_id: c.rejection for c in report.clients if c.rejection}
        assert reasons.keys() == hostile.keys()
        assert all(word in reasons[node_id] for node_id, word in hostile.items())
    for metrics in result.evaluate_metrics_clientapp.values():
        assert {"eval_loss", "eval_acc"} <= metrics.keys()
    assert "train_loss" in result.train_metrics_clientapp[NUM_ROUNDS]


@pytest.mark.all
def test_in_this_process():
    learn(LocalGrid(app, NUM_CLIENTS))
