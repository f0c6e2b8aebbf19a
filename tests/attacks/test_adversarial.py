from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.attacks.adversarial import AdversarialSamples
from fedif_flower.tasks.models import build_model

ROUNDING = 1e-6


def normalize(pixels: Tensor) -> Tensor:
    return (pixels - 0.3) / 0.2


def data(image_shape: tuple[int, int, int], count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    pixels = torch.rand(count, *image_shape, generator=generator).round(decimals=1)
    return pixels, torch.randint(10, (count,), generator=generator)


def losses(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return functional.cross_entropy(model.eval()(normalize(pixels)), labels, reduction="none")


def attacked(model: nn.Module, pixels: Tensor, labels: Tensor, ratio=1.0, steps=20) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    attack = AdversarialSamples(ratio, steps=steps)
    return attack.poison_inputs(model, pixels, labels, normalize, generator)


MODELS = [("cnn", (3, 32, 32)), ("cnn-batch-norm", (1, 28, 28)), ("mlp", (1, 8, 8))]


@pytest.mark.parametrize(("name", "image_shape"), MODELS)
def test_examples_stay_in_the_ball_and_in_range_and_raise_the_loss(name, image_shape):
    # In train mode dropout would make every gradient, and so the examples, random.
    model = build_model(name, image_shape, 10, seed=0).train()
    pixels, labels = data(image_shape, 6)
    found = attacked(model, pixels, labels)
    change = (found - pixels).abs()
    assert 0.029 < float(change.max()) <= 0.03 + ROUNDING  # It goes to the edge of the ball.
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    torch.manual_seed(2)
    assert torch.equal(found, attacked(model, pixels, labels))
    assert bool((losses(model, found, labels) > losses(model, pixels, labels)).all())


def test_a_linear_model_is_driven_to_the_corner_of_the_ball():
    # Logits (0, 3 a - 3 b): for label 0 the loss rises with a and falls with b.
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    model[1].weight.data = torch.tensor([[0.0, 0.0], [3.0, -3.0]])
    pixels = torch.tensor([[0.5, 0.5], [0.99, 0.01]]).view(2, 1, 1, 2)
    labels, attack = torch.zeros(2).long(), AdversarialSamples(1.0, 0.1, step_size=0.05, steps=5)
    found = attack.poison_inputs(model, pixels, labels, lambda x: x, torch.Generator())
    expected = torch.tensor([[0.6, 0.4], [1.0, 0.0]]).view(2, 1, 1, 2)
    torch.testing.assert_close(found, expected)


def test_the_model_is_left_exactly_as_it_was():
    model = build_model("cnn-batch-norm", (1, 28, 28), 10, seed=0).train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model[0].bias.grad = torch.ones(16)
    state = copy.deepcopy(model.state_dict())
    attacked(model, *data((1, 28, 28), 3), steps=2)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert [module.training for module in model][:3] == [True, False, True]
    assert [model[0].weight.requires_grad, model[4].weight.requires_grad] == [False, True]
    assert torch.equal(model[0].bias.grad, torch.ones(16))
    assert model[4].weight.grad is None


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (0.75, 8), (1.0, 10)])
def test_the_share_of_samples_is_replaced_and_the_rest_untouched(ratio, expected):
    model, (pixels, labels) = build_model("mlp", (1, 8, 8), 10, seed=0), data((1, 8, 8), 10)
    kept = pixels.clone()
    changed = (attacked(model, pixels, labels, ratio, steps=2) != pixels).flatten(1).any(1)
    assert int(changed.sum()) == expected
    assert torch.equal(pixels, kept)
