"""What a task gets wrong, in one sentence before anything trains."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn
from torch.nn import functional

from fedif_flower.apps import client_app
from fedif_flower.errors import ConfigError, DataError, TrainingFailedError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.task import Metric, Site
from tests.run.points import absolute_error, line, regression, run


def failing(site: Site):
    raise FileNotFoundError("no such file: 'test.csv'")


@pytest.mark.parametrize(
    ("task", "kind", "sentence"),
    [
        (
            regression(loss=lambda outputs, targets: ((outputs - targets) ** 2).sum()),
            ConfigError,
            "task 'line': validation_data: loss_fn gives .* a mean over the examples",
        ),
        (
            regression(validation_data=lambda site: (np.array(["a"]), np.array([1]))),
            DataError,
            "task 'line': validation_data: a NumPy array has dtype <U1; allowed: numbers",
        ),
        (
            regression(test_data=failing),
            DataError,
            "task 'line': test_data failed: FileNotFoundError: no such file: 'test.csv'",
        ),
        (
            regression(model=lambda: "a model"),
            ConfigError,
            r"task 'line': model\(\) returned str; expected a torch.nn.Module",
        ),
        (
            regression(client_data=lambda site: line(0, 0)),
            DataError,
            "task 'line': client_data of every client is empty",
        ),
    ],
)
def test_what_a_task_gets_wrong_is_one_sentence_before_training(tmp_path, task, kind, sentence):
    with pytest.raises(kind, match=sentence):
        run(tmp_path, task)
    assert not list(tmp_path.iterdir())


def test_a_task_refuses_what_contradicts_itself():
    with pytest.raises(ConfigError, match="loss and batch_loss are both given"):
        regression(batch_loss=lambda model, batch: (functional.mse_loss(*batch), 1))
    twice = [Metric("Error rate", absolute_error), Metric("error-rate", absolute_error)]
    with pytest.raises(ConfigError, match="two metrics are called 'error_rate'"):
        regression(metrics=twice)
    with pytest.raises(ConfigError, match="metric 'loss'"):
        Metric("loss", absolute_error)


def test_a_client_whose_task_or_model_is_another_says_so(tmp_path):
    config = RunConfig.from_run_config(
        {
            "task": "this-app:line",
            "num-clients": 2,
            "fraction-train": 1.0,
            "max-failed-rounds": 1,
            "output-dir": str(tmp_path),
            "device": "cpu",
        }
    )
    other_model = LocalGrid(client_app(regression(model=lambda: nn.Linear(2, 1, bias=False))), 2)
    with pytest.raises(TrainingFailedError, match=r"model is not the server's: .* bias"):
        run_federation(other_model, config, task=regression())
    other_task = LocalGrid(client_app(regression(name="curve")), 2)
    with pytest.raises(TrainingFailedError, match="client's task is 'curve', the server's 'line'"):
        run_federation(other_task, config, task=regression())
