from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import nn

from fedif_flower.run.rows import read_rows
from fedif_studies.local_methods.fedcorr import (
    FedCorr,
    corrected,
    intrinsic_dimensions,
)
from tests.run.points import classes, line, run

NAME = "fedif_studies.local_methods.fedcorr:FedCorr"

RATE, EPOCHS, PASSES, TUNING, ROUNDS, CLIENTS = 0.3, 3, 3, 2, 7, 6
NOISY = {1, 4}
FIGURES = "dimension-and-level"


def test_dimensions_by_hand():
    points = torch.tensor([[0.0], [1.0], [3.0]])
    # Of two neighbours each: distances 1 and 3, 1 and 2, 2 and 3.
    expected = [-2 / math.log(a / b) for a, b in ((1, 3), (1, 2), (2, 3))]
    assert intrinsic_dimensions(points, 2).tolist() == pytest.approx(expected, rel=1e-6)


def test_labels_are_replaced_by_what_the_model_is_sure_of():
    labels = torch.tensor([0, 0, 1, 1])
    probabilities = torch.tensor([[0.1, 0.9], [0.4, 0.6], [0.8, 0.2], [0.9, 0.1]])
    found = corrected(labels, probabilities, torch.tensor([0, 1, 2]), 0.7)
    assert found.tolist() == [1, 0, 0, 1]
    assert labels.tolist() == [0, 0, 1, 1]


def figures(*rows: tuple[float, float]) -> dict[str, torch.Tensor]:
    return {FIGURES: torch.tensor(rows, dtype=torch.float64)}


@pytest.mark.parametrize("value", [0.0, 1e15, -1e15])
def test_absurd_reports_are_bounded(value):
    guide = FedCorr(num_classes=2, passes=1, fine_tuning=3).guide()
    guide.asked([1, 2, 3, 4], 1)
    guide.take(1, [1, 2, 3, 4], figures((2, 0), (2.1, 0), (2.05, 0), (abs(value) + 9, value)))
    assert guide.turn([1, 2, 3, 4], 2).members == ([1, 2, 3] if value > 0 else [1, 2, 3, 4])
    assert 0 <= guide.told(4, 2)["level"] <= 1


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def labelled(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in three strips; a clean client's lie on a line, most labels of others are wrong."""
    inputs, targets = line(client, 60)
    if client < CLIENTS and client not in NOISY:
        inputs = inputs * torch.tensor([1.0, 0.0])
        targets = 2 * inputs[:, :1]
    labels = (targets[:, 0] > -0.8).long() + (targets[:, 0] > 0.8).long()
    if client in NOISY:
        wrong = torch.randint(1, 3, (40,), generator=torch.Generator().manual_seed(client))
        labels[:40] = (labels[:40] + wrong) % 3
    return inputs, labels


def task():
    return classes(
        client_data=lambda site: labelled(site.partition_id),
        validation_data=lambda site: labelled(100),
        test_data=lambda site: labelled(101),
        num_classes=3,
        model=net,
    )


def test_a_run_goes_through_the_stages_and_finds_the_noisy(tmp_path, caplog):
    chosen = {
        "strategy": "fedavg",
        "num_clients": CLIENTS,
        "local_method": NAME,
        "momentum": 0.0,
        "learning_rate": RATE,
        "local_epochs": EPOCHS,
        "batch_size": 60,
        "num_server_rounds": ROUNDS,
        "FedCorr.passes": PASSES,
        "FedCorr.fine_tuning": TUNING,
        "FedCorr.mixup": 0.0,
        "FedCorr.proximal": 2.0,
    }
    with caplog.at_level(logging.INFO):
        run_dir = run(tmp_path, task(), **chosen)
    (found,) = [m for m in caplog.messages if "taken to be noisy" in m]
    assert found.endswith("noisy: client 1, client 4")
    rows = read_rows(run_dir / "clients.csv")
    asked = [{int(r["partition_id"]) for r in rows if int(r["round"]) == t} for t in (4, 5, 6)]
    clean = set(range(CLIENTS)) - NOISY
    assert asked == [clean, clean, clean | NOISY]
