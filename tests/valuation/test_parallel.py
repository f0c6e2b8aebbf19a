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
    own = {"batch_size": 10} | own
    found = Validation(Net(), inputs, targets, device="cpu", **own)
    THREADS.clear()
    return found


def in_one_thread(call):
    with torch_threads(1):
        return call()


def test_a_shared_pass_gives_what_one_thread_gives():
    validation = judge()
    for seed in range(3):
        params = torch.randn(validation.num_params, generator=torch.manual_seed(seed))
        buffers = {"1.running_mean": torch.full((6,), float(seed))}
        found = validation.loss_and_gradient(params, buffers)
        assert len(THREADS) > 1
        alone = in_one_thread(lambda p=params, b=buffers: validation.loss_and_gradient(p, b))
        assert found.loss == pytest.approx(alone.loss, rel=1e-5)
        assert torch.allclose(found.gradient, alone.gradient, rtol=1e-4, atol=1e-6)
        shared, single = (
            validation.evaluate(params, buffers),
            in_one_thread(lambda p=params, b=buffers: validation.evaluate(p, b)),
        )
        assert shared.loss == pytest.approx(single.loss, rel=1e-5)
        assert shared.accuracy == single.accuracy
        THREADS.clear()


def test_passes_at_once_do_not_meet():
    validation = judge()
    points = [torch.randn(validation.num_params) for _ in range(4)]
    expected = in_one_thread(lambda: [validation.loss(p) for p in points])
    with ThreadPoolExecutor(4) as executor:
        calls = [executor.submit(validation.loss, points[i % 4]) for i in range(40)]
        gradients = [executor.submit(validation.gradient, points[i % 4]) for i in range(20)]
    for i, call in enumerate(calls):
        assert call.result() == pytest.approx(expected[i % 4], rel=1e-5)
    for i, call in enumerate(gradients):
        assert torch.allclose(call.result(), gradients[i % 4].result(), rtol=1e-4, atol=1e-7)


def mean_loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1]), len(batch[1])


@pytest.mark.parametrize(
    "own",
    [
        {"batch_loss": mean_loss},
        {"score": lambda outputs, _: outputs.mean()},
        {"batch_size": N},
    ],
    ids=["batch_loss", "score", "one batch"],
)
def test_what_may_keep_a_state_or_cannot_be_divided_stays_in_one_thread(own):
    validation = judge(**own)
    validation.evaluate(validation.params())
    assert len(THREADS) == 1
