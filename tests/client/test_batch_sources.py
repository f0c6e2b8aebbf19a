from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedif_flower.client.training import BatchesAsTheyCome, Trained, train_local, train_on
from fedif_flower.errors import DataError
from fedif_flower.tasks.batches import count_examples
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.valuation.objective import objective_of
from tests.tolerance import rounding

CONFIG = TrainingConfig(local_epochs=2, batch_size=4, learning_rate=0.1, momentum=0.5)
MSE = objective_of(functional.mse_loss, None)


class Scale(nn.Module):
    """f(x) = w x."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight]))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def train_batches(model, data, objective, config, generator) -> Trained:
    source = BatchesAsTheyCome(data, objective, config.batch_size, torch.device("cpu"))
    return train_on(model, source, config, generator)


def test_one_step_by_hand():
    # loss = (w x - y)^2 with w = 1, x = 2, y = 5: gradient -12; w = 1 + 0.1 * 12 = 2.2
    model = Scale(1.0)
    config = CONFIG.replace(local_epochs=1, batch_size=1)
    data = [(torch.tensor([[2.0]]), torch.tensor([[5.0]]))]
    loss, count = train_batches(model, iter([data[0]]), MSE, config, generator())
    assert (loss, count) == (9.0, 1)
    assert float(model.weight) == pytest.approx(2.2)


def test_tensors_cut_as_they_come_train_as_prepared_ones():
    inputs = torch.randn(10, 3, generator=generator(), dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True)
    torch.manual_seed(0)
    plain = nn.Linear(3, 1).double()
    fast = copy.deepcopy(plain)
    loss, count = train_batches(plain, (inputs, targets), MSE, CONFIG, generator())
    expected = train_local(fast, inputs, targets, CONFIG, generator(), loss_fn=functional.mse_loss)
    assert count == 10
    assert loss == pytest.approx(expected, rel=rounding(torch.float32))
    tolerance = rounding(torch.float64, steps=6)
    torch.testing.assert_close(plain.weight, fast.weight, atol=tolerance, rtol=tolerance)


def test_a_list_holds_batches_as_they_come():
    inputs = torch.randn(10, 3, generator=generator())
    targets = inputs.sum(1, keepdim=True)
    batches = list(zip(inputs.split(4), targets.split(4), strict=True))  # 4, 4 and 2
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    other = copy.deepcopy(model)
    found = train_batches(model, batches, MSE, CONFIG, generator())
    in_order = DataLoader(TensorDataset(inputs, targets), 4)
    assert found == train_batches(other, in_order, MSE, CONFIG, generator())
    assert found[1] == count_examples(batches) == 10
    assert torch.equal(model.weight, other.weight)
    in_numpy = [(x.numpy(), y.numpy()) for x, y in batches]
    assert train_batches(copy.deepcopy(other), in_numpy, MSE, CONFIG, generator())[1] == 10


PAD = -100


def test_a_batch_of_ignored_targets_is_left_out():
    rows = torch.randn(6, 3, generator=generator())
    labels = torch.tensor([PAD, PAD, 0, 1, PAD, 1])
    batches = list(zip(rows.split(2), labels.split(2), strict=True))
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    expected = copy.deepcopy(model)
    entropy = objective_of(None, None)
    config = CONFIG.replace(local_epochs=1, momentum=0.0)
    loss, count = train_batches(model, batches, entropy, config, generator())
    theirs, _ = train_batches(expected, batches[1:], entropy, config, generator())
    assert torch.equal(model.weight, expected.weight)
    assert count == 3
    assert loss == theirs  # A mean over the three targets, in batches of two and one.
    with pytest.raises(DataError, match="needs at least one example"):
        train_batches(model, batches[:1], entropy, config, generator())


def test_a_mean_training_loss_is_weighed_as_the_loss_is():
    weights = torch.tensor([1.0, 3.0])
    loss_fn = nn.CrossEntropyLoss(weight=weights)
    rows = torch.randn(6, 3, generator=generator())
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    expected = loss_fn(model(rows), labels).item()
    config = CONFIG.replace(local_epochs=1, learning_rate=1e-30)  # The model stays as it is.
    batches = list(zip(rows.split(2), labels.split(2), strict=True))
    loss, count = train_batches(model, batches, objective_of(loss_fn, None), config, generator())
    assert loss == pytest.approx(expected, rel=rounding(torch.float32))
    assert count == 6
