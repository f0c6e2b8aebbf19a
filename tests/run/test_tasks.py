"""Federations about tasks of other people's kind, from start to report, in this process."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedif_flower.run.rows import read_rows
from fedif_flower.tasks.task import Metric
from tests.run.points import SLOPE, absolute_error, line, regression, run


def test_a_regression_has_its_metric_wherever_a_classifier_has_accuracy(tmp_path):
    run_dir = run(tmp_path, regression())
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


def loader(seed: int) -> DataLoader:
    return DataLoader(TensorDataset(*line(seed)), batch_size=16, shuffle=True)


def batches(seed: int) -> list[dict[str, torch.Tensor]]:
    """Batches in a structure of their own."""
    return [{"x": x, "y": y} for x, y in zip(*(t.split(16) for t in line(seed)), strict=True)]


def dict_loss(model: nn.Module, batch) -> tuple[torch.Tensor, int]:
    return functional.mse_loss(model(batch["x"]), batch["y"]), len(batch["y"])


def dict_error(model: nn.Module, batch) -> torch.Tensor:
    return absolute_error(model(batch["x"]), batch["y"])


OF_DICTS = {
    "loss": None,
    "batch_loss": dict_loss,
    "metrics": [Metric("mean absolute error", dict_error, higher_is_better=False)],
}


@pytest.mark.parametrize(
    ("data", "more"),
    [
        (loader, {}),
        (lambda seed: tuple(tensor.numpy() for tensor in line(seed)), {}),
        (batches, OF_DICTS),
    ],
    ids=["loader", "NumPy", "batches"],
)
def test_data_of_any_form_train_and_repeat_with_the_same_bits(tmp_path, data, more):
    task = regression(
        client_data=lambda site: data(site.partition_id),
        validation_data=lambda site: data(100),
        test_data=lambda site: data(101),
        **more,
    )
    runs = [run(tmp_path, task, run_name=name) for name in ("first", "second")]
    models = [torch.load(run_dir / "model.pt", weights_only=True) for run_dir in runs]
    assert torch.equal(models[0]["weight"], models[1]["weight"])
    assert (models[0]["weight"] - SLOPE.T).abs().max() < 0.2
    assert {row["num_examples"] for row in read_rows(runs[0] / "clients.csv")} == {"40"}


def test_a_client_without_data_is_left_out_and_named(tmp_path):
    empty = regression(client_data=lambda site: line(site.partition_id, 40 * site.partition_id))
    rows = read_rows(run(tmp_path, empty) / "clients.csv")
    reasons = {row["partition_id"]: row["rejection"] for row in rows if row["round"] == "1"}
    assert "local training needs at least one example; this client has none" in reasons["0"]
    assert {reasons[number] for number in "123"} == {""}
