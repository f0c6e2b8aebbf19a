from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.valuation import Validation
from tests.valuation.models import flat


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


INPUTS = torch.randn(7, 1, 4, 4, generator=torch.Generator().manual_seed(1))
TARGETS = torch.tensor([0, 1, 2, 0, 1, 2, 0])


def plain_gradient(model: nn.Module) -> torch.Tensor:
    model.eval()
    loss = functional.cross_entropy(model(INPUTS), TARGETS)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_gradient_is_the_exact_mean_over_chunks(batch_size):
    model = small_model()
    validation = Validation(model, INPUTS, TARGETS, device="cpu", batch_size=batch_size)
    torch.testing.assert_close(validation.gradient(flat(model)), plain_gradient(model))


def test_frozen_parameters_are_not_part_of_the_vector():
    model = small_model()
    model[0].weight.requires_grad_(False)
    validation = Validation(model, INPUTS, TARGETS, device="cpu")
    assert validation.parameter_names == trainable_names(model)
    assert "0.weight" not in validation.parameter_names
    trained = torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])
    frozen = {"0.weight": torch.zeros_like(model[0].weight)}
    assert not torch.equal(validation.gradient(trained), validation.gradient(trained, frozen))


def test_errors():
    model = small_model()
    with pytest.raises(ValuationError, match="one number of examples"):
        Validation(model, INPUTS, TARGETS[:3], device="cpu")
    with pytest.raises(ValuationError, match="batch_size"):
        Validation(model, INPUTS, TARGETS, device="cpu", batch_size=-1)
    validation = Validation(model, INPUTS, TARGETS, device="cpu")
    with pytest.raises(ValuationError, match="not finite"):
        validation.gradient(torch.full_like(flat(model), float("inf")))
