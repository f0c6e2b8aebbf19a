"""Federations about tasks of other people's kind, from start to report, in this process."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedif_flower.apps import client_app
from fedif_flower.errors import ConfigError, DataError, TrainingFailedError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.task import ClientSite, Metric, Site, Task

SLOPE = torch.tensor([[2.0], [-1.0]])


def line(seed: int, count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of y = 2 a - b."""
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs @ SLOPE


def absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).abs().mean()


def regression(**changes) -> Task:
    own = {
        "name": "line",
        "model": lambda: nn.Linear(2, 1),
        "client_data": lambda site: line(site.partition_id),
        "validation_data": lambda site: line(100),
        "test_data": lambda site: line(101),
        "loss": functional.mse_loss,
        "metrics": [Metric("mean absolute error", absolute_error, higher_is_better=False)],
    }
    return Task(**{**own, **changes})


def classes(**changes) -> Task:
    def labelled(seed: int):
        inputs, targets = line(seed, 60)
        return inputs, (targets[:, 0] > 0).long()

    own = {
        "name": "sides",
        "model": lambda: nn.Linear(2, 2),
        "client_data": lambda site: labelled(site.partition_id),
        "validation_data": lambda site: labelled(100),
        "test_data": lambda site: labelled(101),
    }
    return Task(**{**own, **changes})


def run(tmp_path, task: Task, **settings):
    values = {
        "task": "this-app:" + task.name,
        "num-clients": 4,
        "fraction-train": 1.0,
        "num-server-rounds": 3,
        "learning-rate": 0.05,
        "output-dir": str(tmp_path),
        "device": "cpu",
        **{key.replace("_", "-"): value for key, value in settings.items()},
    }
    config = RunConfig.from_run_config(values)
    return run_federation(LocalGrid(client_app(task), config.num_clients), config, task=task)


def test_a_regression_has_its_metric_wherever_a_classifier_has_accuracy(tmp_path):
    run_dir = run(tmp_path, regression())
    assert run_dir.name.startswith("fedif-line-none-")
    rows = read_rows(run_dir / "rounds.csv")
    assert {row["test_accuracy"] for row in rows} == {""}
    errors = [float(row["test_mean_absolute_error"]) for row in rows]
    assert errors[-1] < errors[0] / 5
    summary = json.loads((run_dir / "summary.json").read_text())
    figures = summary["metrics"]["mean absolute error"]
    assert figures["test_best"] == min(errors[1:])
    assert not figures["higher_is_better"]
    report = (run_dir / "report.md").read_text()
    assert f"| test mean absolute error | {errors[-1]:.4g} |" in report
    assert "accuracy" not in report
    assert (run_dir / "metric.png").exists()
    assert not (run_dir / "accuracy.png").exists()


def as_loader(seed: int) -> DataLoader:
    return DataLoader(TensorDataset(*line(seed)), batch_size=16, shuffle=True)


class Batches:
    """A loader of batches in a structure of its own."""

    def __init__(self, seed: int) -> None:
        inputs, targets = line(seed)
        rows = [slice(start, start + 16) for start in range(0, len(inputs), 16)]
        self.batches = [{"x": inputs[part], "y": targets[part]} for part in rows]

    def __iter__(self):
        return iter(self.batches)


def dict_loss(model: nn.Module, batch) -> tuple[torch.Tensor, int]:
    return functional.mse_loss(model(batch["x"]), batch["y"]), len(batch["y"])


def dict_error(model: nn.Module, batch) -> torch.Tensor:
    return absolute_error(model(batch["x"]), batch["y"])


@pytest.mark.parametrize(
    "task",
    [
        regression(
            client_data=lambda site: as_loader(site.partition_id),
            validation_data=lambda site: as_loader(100),
        ),
        regression(client_data=lambda site: TensorDataset(*line(site.partition_id))),
        regression(client_data=lambda site: list(zip(*line(site.partition_id), strict=True))),
        regression(
            client_data=lambda site: Batches(site.partition_id),
            validation_data=lambda site: Batches(100),
            test_data=lambda site: Batches(101),
            loss=None,
            batch_loss=dict_loss,
            metrics=[Metric("mean absolute error", dict_error, higher_is_better=False)],
        ),
    ],
    ids=["loader", "dataset", "sequence", "batches"],
)
def test_data_of_any_form_train_and_repeat_with_the_same_bits(tmp_path, task):
    runs = [run(tmp_path, task, run_name=name) for name in ("first", "second")]
    models = [torch.load(run_dir / "model.pt", weights_only=True) for run_dir in runs]
    assert torch.equal(models[0]["weight"], models[1]["weight"])
    assert (models[0]["weight"] - SLOPE.T).abs().max() < 0.2
    rows = read_rows(runs[0] / "clients.csv")
    assert {row["num_examples"] for row in rows} == {"40"}


def test_a_task_may_train_in_its_own_way(tmp_path):
    def train(model: nn.Module, data, training) -> float:
        inputs, targets = data
        solution = torch.linalg.lstsq(inputs, targets).solution  # [2, 1]
        with torch.no_grad():
            model.weight.copy_(solution.T)
            model.bias.zero_()
        return 0.25

    run_dir = run(tmp_path, regression(train=train), num_server_rounds=1, strategy="fedavg")
    found = torch.load(run_dir / "model.pt", weights_only=True)["weight"]
    torch.testing.assert_close(found, SLOPE.T)
    assert {row["train_loss"] for row in read_rows(run_dir / "clients.csv")} == {"0.25"}
    fedprox = run(tmp_path, regression(train=train), min_valid_replies=1, max_failed_rounds=9,
                  num_server_rounds=1, strategy="fedprox")  # fmt: skip
    rejections = {row["rejection"] for row in read_rows(fedprox / "clients.csv")}
    assert all("FedProx adds a term to the local loss" in reason for reason in rejections)


@pytest.mark.parametrize("strategy", ["fltrust", "fedprox", "krum", "shapfed"])
def test_other_strategies_take_a_task_of_one_s_own(tmp_path, strategy):
    run_dir = run(tmp_path, regression(), strategy=strategy)
    errors = [float(r["test_mean_absolute_error"]) for r in read_rows(run_dir / "rounds.csv")]
    assert errors[-1] < errors[0]


def test_accuracy_is_there_wherever_targets_are_classes(tmp_path):
    run_dir = run(tmp_path, classes(num_classes=2), attack="label-noise", malicious_fraction=0.25)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.8
    assert "metrics" not in summary


@pytest.mark.parametrize(
    ("attack", "needs"),
    [
        ("label-noise", r"class labels \(num_classes\)"),
        ("adversarial", r"class labels \(num_classes\) and float inputs with an input_range"),
    ],
)
def test_an_attack_that_does_not_fit_is_one_sentence_before_training(tmp_path, attack, needs):
    with pytest.raises(ConfigError, match=f"attack '{attack}' needs {needs}, which task 'line'"):
        run(tmp_path, regression(), attack=attack)
    assert not list(tmp_path.iterdir())


def test_adversarial_samples_stay_in_the_range_of_the_task(tmp_path):
    seen = []

    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets)

    class Watched(nn.Linear):
        def forward(self, inputs):
            if self.training:
                seen.append((float(inputs.min()), float(inputs.max())))
            return super().forward(inputs)

    def squeezed(seed):
        inputs, targets = line(seed, 60)
        return inputs.clamp(-1, 3), (targets[:, 0] > 0).long()

    task = classes(
        model=lambda: Watched(2, 2),
        client_data=lambda site: squeezed(site.partition_id),
        num_classes=2,
        input_range=(-1.0, 3.0),
        loss=loss,
    )
    run(tmp_path, task, attack="adversarial", pgd_epsilon=1.0, pgd_steps=2, num_server_rounds=1)
    assert min(low for low, _ in seen) >= -1
    assert max(high for _, high in seen) <= 3
    assert max(high for _, high in seen) > 2.9  # where honest inputs seldom are


SIZES = iter([4, 5, 5])


def growing() -> nn.Module:
    """Return a model that is another one at every call."""
    hidden = next(SIZES)
    return nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def failing(site: Site):
    raise FileNotFoundError("no such file: 'test.csv'")


@pytest.mark.parametrize(
    ("task", "kind", "sentence"),
    [
        (
            regression(loss=lambda outputs, targets: (outputs - targets) ** 2),
            DataError,
            r"task 'line': validation_data: .* expected a scalar tensor",
        ),
        (
            regression(test_data=lambda site: None),
            DataError,
            "task 'line': test_data returned nothing; expected data",
        ),
        (
            regression(test_data=failing),
            DataError,
            "task 'line': test_data failed: FileNotFoundError: no such file: 'test.csv'",
        ),
        (
            regression(test_data=lambda site: line(0, 0)),
            DataError,
            "task 'line': test_data: the validation set is empty",
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
        (
            regression(client_data=lambda site: 1 / 0),
            DataError,
            "task 'line': client_data failed: ZeroDivisionError: division by zero",
        ),
        (
            regression(model=lambda: growing()),
            ConfigError,
            r"gives another model each time: '0.weight' is float32 \[4, 2\] on the server,"
            r" float32 \[5, 2\] on a client",
        ),
    ],
    ids=[
        "loss",
        "no-test",
        "failing-test",
        "empty-test",
        "no-module",
        "no-data",
        "failing-data",
        "model",
    ],
)
def test_what_a_task_gets_wrong_is_one_sentence_before_training(tmp_path, task, kind, sentence):
    with pytest.raises(kind, match=sentence):
        run(tmp_path, task)
    assert not list(tmp_path.iterdir())


def test_keys_of_the_image_task_are_refused_for_another(tmp_path):
    with pytest.raises(ConfigError, match=r"dirichlet-alpha = 0\.5; allowed: only with task"):
        run(tmp_path, regression(), dirichlet_alpha=0.5)


def test_a_task_refuses_what_contradicts_itself():
    with pytest.raises(ConfigError, match="loss and batch_loss are both given"):
        regression(batch_loss=dict_loss)
    twice = [Metric("Error rate", absolute_error), Metric("error-rate", absolute_error)]
    with pytest.raises(ConfigError, match="two metrics are called 'error_rate'"):
        regression(metrics=twice)
    with pytest.raises(ConfigError, match="metric 'loss'"):
        Metric("loss", absolute_error)


def test_clients_are_told_who_they_are(tmp_path):
    sites: list[ClientSite] = []

    def client_data(site: ClientSite):
        sites.append(site)
        return line(site.partition_id)

    run(tmp_path, regression(client_data=client_data), num_server_rounds=1, seed=3)
    assert {(site.partition_id, site.num_partitions, site.seed) for site in sites} == {
        (i, 4, 3) for i in range(4)
    }


def test_a_client_without_data_is_left_out_and_named(tmp_path):
    def client_data(site: ClientSite):
        return line(site.partition_id, 0 if site.partition_id == 0 else 40)

    rows = read_rows(run(tmp_path, regression(client_data=client_data)) / "clients.csv")
    reasons = {row["partition_id"]: row["rejection"] for row in rows if row["round"] == "1"}
    assert "local training needs at least one example; this client has none" in reasons["0"]
    assert {reasons[number] for number in "123"} == {""}


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
