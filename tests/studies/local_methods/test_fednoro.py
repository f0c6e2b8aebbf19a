from __future__ import annotations

import logging
import math

import pytest
import torch

from fedif_flower.errors import ConfigError
from fedif_flower.run.rows import read_rows
from fedif_studies.local_methods.fednoro import (
    FedNoRo,
    distance_aware,
)
from tests.run.points import classes, line, run

NAME = "fedif_studies.local_methods.fednoro:FedNoRo"

NAN = math.nan
RATE, EPOCHS, WARM_UP, ROUNDS, CLIENTS = 0.5, 2, 3, 6, 6
NOISY = {1, 4}


def test_weights_fall_with_the_distance_from_clean_clients():
    updates = torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 2.0], [7.0, 0.0]])
    noisy = torch.tensor([False, False, True, True])
    # The noisy ones are 2 and 4 from the nearest clean one, the second.
    found = distance_aware(torch.tensor([0.1, 0.2, 0.3, 0.4]), updates, noisy)
    raw = [0.1, 0.2, 0.3 * math.exp(-0.5), 0.4 * math.exp(-1)]
    assert found.tolist() == pytest.approx([value / sum(raw) for value in raw])
    same = distance_aware(torch.full((4,), 0.25), torch.ones(4, 2), noisy)
    assert same.tolist() == pytest.approx([0.25] * 4)
    nothing = distance_aware(torch.zeros(4), updates, noisy)
    assert nothing.tolist() == [0.0] * 4


@pytest.mark.parametrize("value", [0.0, 1e15, -1e15])
def test_absurd_reports_of_all_make_nobody_noisy(value):
    guide = FedNoRo(num_classes=2, warm_up=2).guide()
    guide.take(2, [0, 1, 2], {"class-losses": torch.full((3, 2), value).double()})
    assert guide.noisy == frozenset()
    assert not guide.turn([0, 1, 2], 3).everyone


def labelled(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on either side of a line; six in ten of a noisy client's labels are wrong."""
    inputs, targets = line(client, 50)
    labels = (targets[:, 0] > 0).long()
    if client in NOISY:
        labels[:30] = 1 - labels[:30]
    return inputs, labels


def task():
    return classes(client_data=lambda site: labelled(site.partition_id), num_classes=2)


def test_a_run_finds_the_noisy_after_the_warm_up_and_weighs_them_less(tmp_path, caplog):
    chosen = {
        "strategy": "fedavg",
        "num_clients": CLIENTS,
        "local_method": NAME,
        "momentum": 0.0,
        "learning_rate": RATE,
        "local_epochs": EPOCHS,
        "batch_size": 50,
        "num_server_rounds": ROUNDS,
        "FedNoRo.warm_up": WARM_UP,
        "FedNoRo.ramp": 4,
    }
    with caplog.at_level(logging.INFO):
        run_dir = run(tmp_path, task(), **chosen)
    (found,) = [m for m in caplog.messages if "taken to be noisy" in m]
    assert found.startswith(f"round {WARM_UP}: ")
    assert found.endswith("client 1, client 4")
    rows = read_rows(run_dir / "clients.csv")
    last = [r for r in rows if int(r["round"]) == ROUNDS]
    weights = {int(r["partition_id"]): float(r["weight"]) for r in last}
    assert max(weights[i] for i in NOISY) < min(weights[i] for i in set(weights) - NOISY)


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"strategy": "median"}, "RobustRule"),
        ({"strategy": "fedavg", "masking.mode": "trial"}, "masking: members train by SGD alone"),
        ({"strategy": "fedavg", "pace.late-rounds": 1}, "late_rounds"),
        ({"FedNoRo.warm_up": 1}, "FedNoRo.warm-up"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, chosen, reason):
    with pytest.raises(ConfigError, match=reason):
        run(
            tmp_path,
            task(),
            **{"local_method": NAME, **chosen},
        )
