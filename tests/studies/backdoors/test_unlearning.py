"""A linear model with a backdoor in one pixel, made by hand: found by inversion, and unlearned."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedif_studies.backdoors.inversion import invert_triggers
from fedif_studies.backdoors.unlearning import unlearn_triggers


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(weight: Tensor, bias: Tensor) -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, len(bias)))
    with torch.no_grad():
        model[1].weight.copy_(weight)
        model[1].bias.copy_(bias)
    return model


@pytest.fixture
def model() -> nn.Sequential:
    """Class 1 where the last pixel is bright; else 0 or 2, by the sum of the others."""
    weight = torch.zeros(3, 9)
    weight[0, :8], weight[1, 8], weight[2, :8] = -1.0, 12.0, 1.0
    return linear(weight, torch.tensor([4.0, -6.0, -4.0]))


@pytest.fixture
def images() -> Tensor:
    found = torch.rand(200, 1, 3, 3, generator=generator(0))
    found[:, 0, -1, -1] *= 0.4
    found[0, 0, -1, -1] = 1.0  # The trigger lies in the range of the pixels.
    return found


def test_the_class_with_a_backdoor_has_the_smallest_mask_and_it_covers_the_trigger(model, images):
    triggers = invert_triggers(model, images, 3, steps=100, generator=generator())
    assert int(triggers.sizes.argmin()) == 1
    assert int(triggers.masks[1, 0].argmax()) == 8
    taken = model(triggers.stamp(images, 1)).argmax(dim=1)
    assert float((taken == 1).double().mean()) > 0.9
    for patch in (triggers.masks, triggers.patterns):
        assert bool(((patch >= 0) & (patch <= 1)).all())


def test_a_backdoor_is_unlearned_and_other_answers_stay(model, images):
    before, with_trigger = model(images).argmax(dim=1), images.clone()
    with_trigger[:, 0, -1, -1] = 1.0
    classes = torch.where(images.flatten(1)[:, :8].sum(dim=1) > 4, 2, 0)
    assert bool((model(with_trigger).argmax(dim=1) == 1).all())
    found = unlearn_triggers(model, images, classes, learning_rate=0.1, generator=generator())
    assert (found[0].label, found[0].share < 0.5) == (1, True)
    assert found[-1].share >= 0.5
    answers = model(with_trigger).argmax(dim=1)
    assert float((answers == classes).double().mean()) > 0.7
    kept = model(images).argmax(dim=1)[1:] == before[1:]
    assert float(kept.double().mean()) > 0.9


def test_a_model_without_a_trigger_is_left_as_it_is(images):
    # Each class by pixels of its own: no mask is much smaller than another.
    model = linear(6.0 * torch.eye(3).repeat_interleave(3, dim=1), torch.zeros(3))
    before = [parameter.clone() for parameter in model.parameters()]
    (found,) = unlearn_triggers(model, images, model(images).argmax(dim=1), generator=generator())
    assert found.share >= 0.5
    assert all(map(torch.equal, model.parameters(), before))
