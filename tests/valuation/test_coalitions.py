from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.valuation import Validation
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_flower.valuation.shapley.valuation import RoundGame, coalition_means
from tests.rounds import a_round
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


FLOATING = ("1.running_mean", "1.running_var")


def floats(model: nn.Module) -> Tensor:
    return torch.cat([model.state_dict()[name] for name in FLOATING])


class Norms:
    """The two floating-point buffers by name, and the counter."""

    def named_buffers(self, vectors: ModelVectors) -> dict[str, Tensor]:
        return {**self.split_buffers(vectors.buffers), **vectors.counters}

    def split_buffers(self, buffers: Tensor) -> dict[str, Tensor]:
        return dict(zip(FLOATING, buffers.split(4, dim=-1), strict=True))


def played() -> RoundUpdates:
    counters = {"1.num_batches_tracked": GLOBAL[1].num_batches_tracked}
    return a_round(
        torch.stack([flat(client) for client in CLIENTS]) - flat(GLOBAL),
        model=ModelVectors(flat(GLOBAL), floats(GLOBAL), counters),
        buffer_updates=torch.stack([floats(c) for c in CLIENTS]) - floats(GLOBAL),
        names=Norms(),
    )


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


@pytest.fixture(params=[1, 3], ids=lambda threads: f"{threads} threads")
def threads(request, monkeypatch):
    # As if the work were worth sharing.
    monkeypatch.setattr("fedif_flower.valuation.parallel._WORTH_SHARING", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


ROW = flat(GLOBAL).numel() * 4


@pytest.mark.parametrize(("budget", "batch_size"), [(1, N), (ROW, 7), (7 * ROW, N), (2**28, 7)])
def test_agrees_with_a_plain_loop(threads, budget, batch_size):
    judge = validation(batch_size=batch_size)
    worths = RoundGame(judge, played(), "loss", budget)(MASKS)
    torch.testing.assert_close(-worths, LOSSES, rtol=1e-5, atol=1e-6)
    game = RoundGame(judge, played(), "accuracy", budget)
    # No image here lies so near a border between classes that rounding decides.
    torch.testing.assert_close(game(MASKS), ACCURACIES, rtol=0, atol=1e-12)
    assert game.largest == pytest.approx(float(ACCURACIES.max()))


def test_means_by_hand():
    clients = torch.tensor([[1.0, 10.0], [3.0, 30.0], [8.0, 80.0]])
    masks = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool()
    means = coalition_means(clients, masks, torch.tensor([-1.0, -2.0]))
    torch.testing.assert_close(means, torch.tensor([[4.5, 45.0], [-1.0, -2.0], [4.0, 40.0]]))
