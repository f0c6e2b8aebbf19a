from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedif_flower.devices import torch_threads
from fedif_flower.valuation import Validation

N, CLASSES = 230, 4


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """Share every pass, however small, by three threads."""
    monkeypatch.setattr("fedif_flower.valuation.parallel._WORTH_SHARING", 0)
    with torch_threads(3):
        yield


class Net(nn.Sequential):
    """A model that notes which threads it is called in."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, inputs):
        THREADS.add(threading.get_ident())
        sleep(0.0002)  # Let the others have their turn.
        return super().forward(inputs)


THREADS: set[int] = set()


def judge(**own) -> Validation:
    torch.manual_seed(0)
    inputs, targets = torch.randn(N, 5), torch.randint(0, CLASSES, (N,))
    found = Validation(Net(), inputs, targets, **{"device": "cpu", "batch_size": 10} | own)
    THREADS.clear()
    return found


def look(validation: Validation, seed: int) -> torch.Tensor:
    params = torch.randn(validation.num_params, generator=torch.Generator().manual_seed(seed))
    buffers = {"1.running_mean": torch.full((6,), float(seed))}
    loss, gradient = validation.loss_and_gradient(params, buffers)
    found = validation.evaluate(params, buffers)
    return torch.cat([torch.tensor([loss, found.loss, found.accuracy]), gradient])


def test_shared_passes_at_once_give_what_one_thread_gives():
    validation = judge()
    with torch_threads(1):
        expected = [look(validation, seed) for seed in range(4)]
    assert len(THREADS) == 1
    with ThreadPoolExecutor(4) as executor:
        found = list(executor.map(lambda i: look(validation, i % 4), range(40)))
    assert len(THREADS) > 2
    for i, own in enumerate(found):
        torch.testing.assert_close(own, expected[i % 4], rtol=1e-4, atol=1e-6)


def mean_loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1]), len(batch[1])


STATEFUL = {"batch_loss": mean_loss}, {"score": lambda outputs, _: outputs.mean()}


@pytest.mark.parametrize("own", [*STATEFUL, {"batch_size": N}], ids=" ".join)
def test_what_may_keep_a_state_or_cannot_be_divided_stays_in_one_thread(own):
    validation = judge(**own)
    validation.evaluate(validation.params())
    assert len(THREADS) == 1
