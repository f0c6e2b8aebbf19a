from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.valuation import Validation
from fedif_flower.valuation.coalitions import coalition_means, coalition_scores
from fedif_flower.valuation.shapley.exact import all_coalitions
from tests.valuation.models import flat

M = 4
N = 90


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(16, 3),
    )
    with torch.no_grad():
        model[1].running_mean.uniform_(-0.5, 0.5)
        model[1].running_var.uniform_(0.5, 2.0)
        model[1].num_batches_tracked.fill_(seed)
    return model


CLIENTS = [build(seed) for seed in range(1, M + 1)]
GLOBAL = build(0)
INPUTS = torch.randn(N, 2, 4, 4, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(3, (N,), generator=torch.Generator().manual_seed(2))


PARAMS = torch.stack([flat(client) for client in CLIENTS])  # [m, d]
FLOATING = ("1.running_mean", "1.running_var")
BUFFERS = {name: torch.stack([c.state_dict()[name] for c in CLIENTS]) for name in FLOATING}
BUFFERS_OF_ALL = BUFFERS | {"1.num_batches_tracked": torch.arange(1, M + 1)}
GLOBAL_BUFFERS = dict(GLOBAL.named_buffers())


def plain_loop(masks: Tensor) -> tuple[Tensor, Tensor]:
    """One ``load_state_dict`` and one pass per coalition: accuracies and losses."""
    model, rows = copy.deepcopy(GLOBAL).eval(), []
    for mask in masks.tolist():
        members = [c.state_dict() for c, chosen in zip(CLIENTS, mask, strict=True) if chosen]
        mean = {
            name: torch.stack([member[name] for member in members]).mean(dim=0)
            if members and value.is_floating_point()
            else value
            for name, value in GLOBAL.state_dict().items()
        }
        model.load_state_dict(mean)
        with torch.no_grad():
            logits = model(INPUTS)
        accuracy = (logits.argmax(dim=1) == TARGETS).double().mean()
        rows.append((accuracy, functional.cross_entropy(logits, TARGETS).double()))
    accuracies, losses = zip(*rows, strict=True)
    return torch.stack(accuracies), torch.stack(losses)


MASKS = all_coalitions(M)[torch.randperm(2**M, generator=torch.Generator().manual_seed(3))]
ACCURACIES, LOSSES = plain_loop(MASKS)


def validation(**arguments) -> Validation:
    return Validation(GLOBAL, INPUTS, TARGETS, device="cpu", **arguments)


coalition_loss = partial(coalition_scores, metric="loss")
coalition_accuracy = partial(coalition_scores, metric="accuracy")


@pytest.fixture(params=[1, 3], ids=lambda threads: f"{threads} threads")
def threads(request, monkeypatch):
    # As if the work were worth sharing.
    monkeypatch.setattr("fedif_flower.valuation.parallel._WORTH_SHARING", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


ROW = PARAMS[0].numel() * 4


@pytest.mark.parametrize(("budget", "batch_size"), [(1, N), (ROW, 7), (7 * ROW, N), (2**28, 7)])
def test_agrees_with_a_plain_loop(threads, budget, batch_size):
    judge = validation(batch_size=batch_size)
    kwargs = {
        "client_buffers": BUFFERS_OF_ALL,
        "global_buffers": GLOBAL_BUFFERS,
        "memory_budget": budget,
    }
    losses = coalition_loss(judge, PARAMS, MASKS, flat(GLOBAL), **kwargs)
    torch.testing.assert_close(losses, LOSSES, rtol=1e-5, atol=1e-6)
    accuracies = coalition_accuracy(judge, PARAMS, MASKS, flat(GLOBAL), **kwargs)
    # No image here lies so near a border between classes that rounding decides.
    torch.testing.assert_close(accuracies, ACCURACIES, rtol=0, atol=1e-12)
    assert accuracies.dtype == losses.dtype == torch.float64


def test_what_is_left_out_stays_as_it_was_last(threads):
    judge = validation()
    mask = torch.ones(3, M, dtype=torch.bool)
    before = coalition_loss(judge, PARAMS, mask, flat(GLOBAL))
    moved = {"1.running_mean": GLOBAL_BUFFERS["1.running_mean"] + 1.0}
    judge.evaluate(flat(GLOBAL), moved)
    after = coalition_loss(judge, PARAMS, mask, flat(GLOBAL))
    assert (after != before).all()
    expected = validation()
    expected.evaluate(flat(GLOBAL), moved)
    mean = expected.loss(PARAMS.mean(dim=0))
    torch.testing.assert_close(after, torch.full((3,), mean, dtype=torch.float64))


def test_means_by_hand():
    clients = torch.tensor([[1.0, 10.0], [3.0, 30.0], [8.0, 80.0]])
    masks = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool()
    means = coalition_means(clients, masks, torch.tensor([-1.0, -2.0]))
    torch.testing.assert_close(means, torch.tensor([[4.5, 45.0], [-1.0, -2.0], [4.0, 40.0]]))
