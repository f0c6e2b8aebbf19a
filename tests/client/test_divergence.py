"""A member whose training leads to no numbers: its log and the server's line say where and why."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from fedif_flower import FedAvg, model_arrays
from fedif_flower.client.training import train_task
from fedif_flower.errors import DataError
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.not_finite import count_not_finite, read_not_finite
from tests.run.points import line, regression, run
from tests.server.hostile import Clients, honest_parts, reply_of
from tests.strategies.lines import BASE
from tests.valuation.models import build

# Batches of four in the order of the data.
CONFIG = TrainingConfig(local_epochs=2, batch_size=4, learning_rate=0.1)
HOLED = line(0, 12)[0].clone()
HOLED[6, 1] = torch.nan
HOLED[9] = torch.inf
HOLED[10, 0] = torch.nan
TARGETS = line(0, 12)[1]
PAIRS = [(x, y) for x, y in zip(HOLED, TARGETS, strict=True)]
DICTIONARIES = [{"x": x, "y": y} for x, y in PAIRS]


class Made(Dataset):
    """What makes its examples as they are asked for."""

    def __len__(self) -> int:
        return len(PAIRS)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return PAIRS[index]


class Filled(TensorDataset):
    """Fills in what its tensors lack as it hands out its examples."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(values.nan_to_num() for values in super().__getitem__(index))


BATCHES = list(zip(HOLED.split(4), TARGETS.split(4), strict=True))
IN_MEMORY = {
    "tensors": (HOLED, TARGETS),
    "NumPy arrays": (HOLED.numpy(), TARGETS.numpy()),
    "complex numbers": (torch.complex(TARGETS, TARGETS), HOLED.to(torch.complex64)),
    "dictionary": {"x": HOLED, "y": TARGETS},
    "nested": ({"x": HOLED, "mask": torch.ones(12, dtype=torch.bool)}, TARGETS),
    "targets": (torch.ones(12, 2), HOLED[:, 1] + HOLED[:, 0]),
    "TensorDataset": TensorDataset(HOLED, TARGETS),
    "batches": BATCHES,
    "loader": DataLoader(TensorDataset(HOLED, TARGETS), batch_size=5),
    "loader of dictionaries": DataLoader(DICTIONARIES, batch_size=5),
    "loader of a part": DataLoader(Subset(TensorDataset(HOLED, TARGETS), [6, 9, 10]), 2),
    "part of a list": Subset(PAIRS, range(2, 12)),
}


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_examples_that_are_no_numbers_are_counted(kind):
    data: Any = IN_MEMORY[kind]
    assert count_not_finite(data) == (2, 1)
    assert read_not_finite(data) == (2, 1)


@pytest.mark.parametrize("data", [DataLoader(Made(), batch_size=5), Made(), Subset(Made(), [1, 6])])
def test_what_is_made_as_it_is_asked_for_is_read_where_it_matters_alone(data):
    assert count_not_finite(data) is None
    found = (1, 0) if isinstance(data, Subset) else (2, 1)
    assert read_not_finite(data) == found
    assert read_not_finite(iter(data)) == (0, 0)  # It would be used up.


def filled(examples: list[tuple[Tensor, Tensor]]) -> Any:
    return tuple(values.nan_to_num() for values in default_collate(examples))


def test_what_a_loader_fills_in_or_leaves_out_is_not_counted():
    dataset = TensorDataset(HOLED, TARGETS)
    filling = DataLoader(dataset, batch_size=5, collate_fn=filled)
    assert count_not_finite(filling) is None
    assert read_not_finite(filling) == (0, 0)
    for choice in ({"sampler": [0, 1, 9]}, {"batch_sampler": [[0, 1], [9]]}):
        choosing = DataLoader(dataset, **choice)
        assert count_not_finite(choosing) is None
        assert read_not_finite(choosing) == (0, 1)


def test_what_a_dataset_fills_in_is_not_counted():
    data = Filled(HOLED, TARGETS)
    assert count_not_finite(data) is None
    assert count_not_finite(Subset(data, [6])) is None
    assert read_not_finite(data) == (0, 0)


def test_whole_numbers_and_other_parts_are_not_counted():
    assert count_not_finite((torch.arange(3), torch.arange(3))) == (0, 0)
    assert count_not_finite(Subset(TensorDataset(HOLED, TARGETS), [0, 1])) == (0, 0)
    assert count_not_finite((np.arange(3), np.arange(3))) == (0, 0)


def dictionary_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    return functional.mse_loss(model(batch["x"]), batch["y"]), len(batch["y"])


FORMS = {
    "batches": (BATCHES, {}),
    "loader": (DataLoader(TensorDataset(HOLED, TARGETS), batch_size=4), {}),
    "dictionaries": (
        DataLoader(DICTIONARIES, batch_size=4),
        {"loss": None, "batch_loss": dictionary_loss},
    ),
    "made": (DataLoader(Made(), batch_size=4), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_step_is_named_and_that_features_are_no_numbers(form, caplog):
    data, own = FORMS[form]
    task, model = regression(**own), build(nn.Linear, 2, 1)
    words = "the training loss was nan at step 2 of epoch 1; NaN in 2 of its examples"
    with pytest.raises(DataError, match=f"^{words}$"):
        train_task(task, model, data, CONFIG, torch.Generator())
    assert words in caplog.text  # The member's own log.


def test_a_step_too_long_is_told_from_bad_data():
    data = list(zip(*(part.split(4) for part in line(0, 12)), strict=True))
    far = CONFIG.replace(learning_rate=1e30)
    words = r"loss was inf at step 2 of epoch 1; all its examples are finite: try a lower"
    with pytest.raises(DataError, match=words):
        train_task(regression(), build(nn.Linear, 2, 1), data, far, torch.Generator())
    (first, *_) = data
    words = r"^a step of epoch 1 led to parameters that are NaN or infinite; all its examples"
    with pytest.raises(DataError, match=words):
        train_task(
            regression(),
            build(nn.Linear, 2, 1),
            [first],
            far.replace(learning_rate=3e38),
            torch.Generator(),
        )


def test_a_loss_that_is_no_number_is_told_though_the_model_is_one(caplog):
    def infinite(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean() * 0 + torch.inf

    model = build(nn.Linear, 2, 1)
    trained = train_task(regression(loss=infinite), model, BATCHES[:1], CONFIG, torch.Generator())
    assert math.isinf(trained.loss)
    assert bool(model.weight.isfinite().all())
    assert "the training loss was inf at step 1 of epoch 1" in caplog.text
    assert "at step 1 of epoch 2" in caplog.text


def test_training_of_ones_own_is_told_as_well():
    def train(model, data, training):
        with torch.no_grad():
            model.weight.fill_(torch.nan)
        return torch.nan

    words = r"train\(\) of task 'line' led to .* loss of nan; NaN in 2 of its examples"
    with pytest.raises(DataError, match=words):
        train_task(
            regression(train=train),
            build(nn.Linear, 2, 1),
            (HOLED, TARGETS),
            CONFIG,
            torch.Generator(),
        )


def test_training_of_ones_own_may_leave_the_model_frozen():
    def train(model, data, training):
        model.requires_grad_(False)
        return 0.5

    tensors = line(0, 12)
    model = build(nn.Linear, 2, 1)
    trained = train_task(regression(train=train), model, tensors, CONFIG, torch.Generator())
    assert trained == (0.5, 12)


def test_the_server_s_line_says_it(tmp_path):
    def data(site):
        inputs, targets = line(site.partition_id)
        if site.partition_id == 1:
            inputs[3, 0] = torch.nan
        return inputs, targets

    folder = run(tmp_path, regression(client_data=data), num_server_rounds=1, local_epochs=1)
    told = {row["partition_id"]: row["rejection"] for row in read_rows(folder / "clients.csv")}
    assert "DataError('the training loss was nan at step" in told["1"]
    assert "NaN in 1 of its examples" in told["1"]
    assert not any(reason for partition_id, reason in told.items() if partition_id != "1")


@pytest.mark.parametrize("key", ["train_loss", "train-loss", "loss"])
def test_what_another_app_s_member_says_of_its_loss_stands_beside_the_refusal(key):
    def diverged(message: Message, context: Context) -> Message:
        arrays, _ = honest_parts(message, math.nan)
        return reply_of(message, arrays, {"num-examples": 10, key: math.nan})

    strategy = FedAvg(**BASE)
    clients = Clients({0: diverged})
    strategy.start(LocalGrid(clients, 3), model_arrays(nn.Linear(2, 2)), num_rounds=1)
    (refused,) = [c.rejection for c in strategy.history.rounds[0].clients if c.rejection]
    assert refused == "array 'weight' has NaN or Inf; its training loss was nan"
