"""A linear model with a backdoor in one pixel, made by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedif_studies.backdoors.unlearning import unlearn_triggers


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(weight: Tensor, bias: Tensor) -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, len(bias)))
    with torch.no_grad():
        model[1].weight.copy_(weight)
        model[1].bias.copy_(bias)
    return model


def backdoored() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Class 1 where the last pixel is bright; else 0 or 2, by the sum of the others."""
    weight = torch.zeros(3, 9)
    weight[0, :8], weight[1, 8], weight[2, :8] = -1.0, 12.0, 1.0
    model = linear(weight, torch.tensor([4.0, -6.0, -4.0]))
    images = torch.rand(200, 1, 3, 3, generator=generator(0))
    images[:, 0, -1, -1] *= 0.4
    images[0, 0, -1, -1] = 1.0  # The trigger lies in the range of the pixels.
    classes = torch.where(images.flatten(1)[:, :8].sum(dim=1) > 4, 2, 0)
    return model, images, classes


def with_trigger(images: Tensor) -> Tensor:
    stamped = images.clone()
    stamped[:, 0, -1, -1] = 1.0
    return stamped


def test_a_backdoor_is_unlearned_and_other_answers_stay():
    model, images, classes = backdoored()
    before = model(images).argmax(dim=1)
    assert bool((model(with_trigger(images)).argmax(dim=1) == 1).all())
    found = unlearn_triggers(model, images, classes, learning_rate=0.1, generator=generator())
    assert (found[0].label, found[0].share < 0.5) == (1, True)
    assert found[-1].share >= 0.5
    answers = model(with_trigger(images)).argmax(dim=1)
    assert float((answers == classes).double().mean()) > 0.7
    kept = model(images).argmax(dim=1)[1:] == before[1:]
    assert float(kept.double().mean()) > 0.9


def test_a_model_without_a_trigger_is_left_as_it_is():
    # Each class by pixels of its own: no mask is much smaller than another.
    weight = 6.0 * torch.eye(3).repeat_interleave(3, dim=1)
    model = linear(weight, torch.zeros(3))
    images = torch.rand(60, 1, 3, 3, generator=generator(0))
    before = [parameter.clone() for parameter in model.parameters()]
    found = unlearn_triggers(model, images, model(images).argmax(dim=1), generator=generator())
    assert len(found) == 1
    assert found[0].share >= 0.5
    assert all(map(torch.equal, model.parameters(), before))
