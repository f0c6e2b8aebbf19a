from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower.client.local import train_task
from fedif_flower.errors import ConfigError
from fedif_flower.tasks.config import TrainingConfig
from tests.run.points import line, regression


def test_a_proximal_term_is_refused_where_a_task_trains_in_its_own_way():
    task = regression(train=lambda model, data, training: 0.0)
    with pytest.raises(ConfigError, match="FedProx adds a term to the local loss, but task 'line'"):
        train_task(
            *(task, nn.Linear(2, 1), line(0), TrainingConfig(), torch.Generator()), proximal_mu=0.1
        )
