from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedif_flower.client.training import train_task
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.config import TrainingConfig
from tests.run.points import classes, line, regression


def test_a_proximal_term_is_refused_where_a_task_trains_in_its_own_way():
    task = regression(train=lambda model, data, training: 0.0)
    with pytest.raises(ConfigError, match="FedProx adds a term to the local loss, but task 'line'"):
        train_task(
            *(task, nn.Linear(2, 1), line(0), TrainingConfig(), torch.Generator()), proximal_mu=0.1
        )


def test_examples_whose_target_is_ignored_are_left_out():
    """A batch of them alone would make the model NaN."""
    inputs, _ = line(0, 8)
    targets = torch.tensor([0, -100, 1, -100, -100, -100, -100, 1])
    training = TrainingConfig(local_epochs=2, batch_size=2)
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    expected = copy.deepcopy(model)
    found = train_task(
        classes(), model, (inputs, targets), training, torch.Generator().manual_seed(1)
    )
    kept = targets >= 0
    theirs = train_task(
        *(classes(), expected, (inputs[kept], targets[kept]), training),
        torch.Generator().manual_seed(1),
    )
    assert found == theirs
    assert found.num_examples == 3
    assert torch.equal(model.weight, expected.weight)
    with pytest.raises(DataError, match="needs at least one example"):
        train_task(
            *(classes(), model, (inputs, torch.full((8,), -100)), training), torch.Generator()
        )
