"""Federations about tasks of other people's kind, from start to report, in this process."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedif_flower.apps import client_app
from fedif_flower.errors import FedIFError, TrainingFailedError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.task import Metric, Site
from tests.run.points import SLOPE, absolute_error, line, regression
from tests.run.points import run as run_task


def test_a_regression_has_its_metric_wherever_a_classifier_has_accuracy(tmp_path):
    run_dir = run_task(tmp_path, regression())
    assert run_dir.name.startswith("fedif-line-none-")
    rows = read_rows(run_dir / "rounds.csv")
    assert {row["test_accuracy"] for row in rows} == {""}
    errors = [float(row["test_mean_absolute_error"]) for row in rows]
    assert errors[-1] < errors[0] / 5
    figures = json.loads((run_dir / "summary.json").read_text())["metrics"]["mean absolute error"]
    assert figures["test_best"] == min(errors[1:])
    assert not figures["higher_is_better"]
    report = (run_dir / "report.md").read_text()
    assert f"| test mean absolute error | {errors[-1]:.4g} |" in report
    assert "accuracy" not in report
    assert (run_dir / "metric.png").exists()
    assert not (run_dir / "accuracy.png").exists()


def batches(seed: int) -> list[dict[str, torch.Tensor]]:
    """Batches in a structure of their own."""
    return [{"x": x, "y": y} for x, y in zip(*(t.split(16) for t in line(seed)), strict=True)]


def dict_loss(model: nn.Module, batch) -> tuple[torch.Tensor, int]:
    return functional.mse_loss(model(batch["x"]), batch["y"]), len(batch["y"])


def dict_error(model: nn.Module, batch) -> torch.Tensor:
    return absolute_error(model(batch["x"]), batch["y"])


def test_batches_of_any_structure_train_and_repeat_with_the_same_bits(tmp_path):
    task = regression(
        client_data=lambda site: batches(site.partition_id),
        validation_data=lambda site: batches(100),
        test_data=lambda site: batches(101),
        loss=None,
        batch_loss=dict_loss,
        metrics=[Metric("mean absolute error", dict_error, higher_is_better=False)],
    )
    runs = [run_task(tmp_path, task, run_name=name) for name in ("first", "second")]
    models = [torch.load(run_dir / "model.pt", weights_only=True) for run_dir in runs]
    assert torch.equal(models[0]["weight"], models[1]["weight"])
    assert (models[0]["weight"] - SLOPE.T).abs().max() < 0.2
    assert {row["num_examples"] for row in read_rows(runs[0] / "clients.csv")} == {"40"}


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
        run_task(tmp_path, regression(**changes))
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
