"""The game of a round, and its Shapley values."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.devices import torch_threads
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import RoundUpdates
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.valuation import Validation
from fedif_flower.valuation.shapley.exact import all_coalitions, exact_shapley
from fedif_flower.valuation.shapley.valuation import RoundGame, ShapleyValuation, coalition_means
from tests.rounds import a_round


def test_means_by_hand():
    clients = torch.tensor([[1.0, 10.0], [3.0, 30.0], [8.0, 80.0]])
    masks = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool()
    means = coalition_means(clients, masks, torch.tensor([-1.0, -2.0]))
    torch.testing.assert_close(means, torch.tensor([[4.5, 45.0], [-1.0, -2.0], [4.0, 40.0]]))


M, N = 4, 90


def built(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    convolution = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(2))
    model = convolution.extend([nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3)])
    with torch.no_grad():
        model[1].running_mean.uniform_(-0.5, 0.5)
        model[1].running_var.uniform_(0.5, 2.0)
        model[1].num_batches_tracked.fill_(seed)
    return model


GLOBAL, *CLIENTS = map(built, range(M + 1))
INPUTS = torch.randn(N, 2, 4, 4, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(3, (N,), generator=torch.Generator().manual_seed(2))
LAYOUT = ParameterLayout.from_arrays(model_arrays(GLOBAL), trainable_names(GLOBAL))


def played() -> RoundUpdates:
    sent, *received = (LAYOUT.to_vectors(model_arrays(model)) for model in (GLOBAL, *CLIENTS))
    return a_round(
        torch.stack([vectors.params for vectors in received]) - sent.params,
        model=sent,
        buffer_updates=torch.stack([vectors.buffers for vectors in received]) - sent.buffers,
        names=LAYOUT,
    )


def plain_loop(masks: Tensor) -> Tensor:
    """One ``load_state_dict`` and one pass per coalition: accuracies and losses ``[2, c]``."""
    model, columns = copy.deepcopy(GLOBAL).eval(), []
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
        columns.append(torch.stack([accuracy, functional.cross_entropy(logits, TARGETS).double()]))
    return torch.stack(columns, dim=1)


def judged(batch_size: int = N) -> Validation:
    return Validation(GLOBAL, INPUTS, TARGETS, device="cpu", batch_size=batch_size)


MASKS = all_coalitions(M)[torch.randperm(2**M, generator=torch.Generator().manual_seed(3))]
ACCURACIES, LOSSES = plain_loop(MASKS)
ROW = LAYOUT.num_params * 4


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("budget", "batch_size"), [(1, N), (ROW, 7), (7 * ROW, N), (2**28, 7)])
def test_worths_agree_with_a_plain_loop(threads, budget, batch_size, monkeypatch):
    # As if the work were worth sharing.
    monkeypatch.setattr("fedif_flower.valuation.parallel._WORTH_SHARING", 0)
    judge = judged(batch_size)
    with torch_threads(threads):
        worths = RoundGame(judge, played(), "loss", budget)(MASKS)
        torch.testing.assert_close(-worths, LOSSES, rtol=1e-5, atol=1e-6)
        game = RoundGame(judge, played(), "accuracy", budget)
        # No image here lies so near a border between classes that rounding decides.
        torch.testing.assert_close(game(MASKS), ACCURACIES, rtol=0, atol=1e-12)
        assert game.largest == pytest.approx(float(ACCURACIES.max()))


def test_scores_are_the_games_values():
    scores = ShapleyValuation(judged(), estimator="exact").score(played())
    expected = exact_shapley(lambda masks: plain_loop(masks)[0], M)
    torch.testing.assert_close(scores.values, expected)
    assert scores.evaluations == 2**M
    assert scores.influences is None


@pytest.mark.parametrize("estimator", ["complementary", "permutation", "owen"])
def test_draws_depend_on_seed_and_round_alone(estimator):
    def drawn(server_round: int, seed: int) -> tuple[float, ...]:
        valuation = ShapleyValuation(judged(), estimator=estimator, num_samples=2, seed=seed)
        return tuple(valuation.score(replace(played(), server_round=server_round)).values.tolist())

    assert drawn(3, 7) == drawn(3, 7)
    assert len({drawn(server_round, 7) for server_round in range(5)}) > 1
    assert len({drawn(3, seed) for seed in range(5)}) > 1
