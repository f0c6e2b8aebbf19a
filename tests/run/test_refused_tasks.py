"""What a task gets wrong, in one sentence before anything trains."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from fedif_flower.apps import client_app
from fedif_flower.errors import FedIFError, TrainingFailedError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.task import Site
from tests.run.points import regression, run


def failing(site: Site):
    raise FileNotFoundError("no such file: 'test.csv'")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"loss": lambda outputs, targets: ((outputs - targets) ** 2).sum()},
            "validation_data: loss_fn gives .* a mean over the examples",
        ),
        (
            {"validation_data": lambda site: (np.array(["a"]), np.array([1]))},
            "validation_data: a NumPy array has dtype <U1; allowed: numbers",
        ),
        ({"test_data": failing}, "test_data failed: FileNotFoundError: no such file: 'test.csv'"),
        ({"model": lambda: "a model"}, r"model\(\) returned str; expected a torch.nn.Module"),
    ],
)
def test_what_a_task_gets_wrong_is_one_sentence_before_training(tmp_path, changes, sentence):
    with pytest.raises(FedIFError, match=f"task 'line': {sentence}"):
        run(tmp_path, regression(**changes))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"model": lambda: nn.Linear(2, 1, bias=False)}, r"model is not the server.*bias"),
        ({"name": "curve"}, "client's task is 'curve', the server's 'line'"),
    ],
)
def test_a_client_whose_task_or_model_is_another_says_so(tmp_path, other, reason):
    values = {"task": "this-app:line", "num-clients": 2, "fraction-train": 1.0, "device": "cpu"}
    own = {"max-failed-rounds": 1, "output-dir": str(tmp_path)}
    grid = LocalGrid(client_app(regression(**other)), 2)
    with pytest.raises(TrainingFailedError, match=reason):
        run_federation(grid, RunConfig.from_run_config(values | own), task=regression())
