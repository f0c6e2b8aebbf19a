"""A model in half precision is judged as exactly as its own outputs allow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.valuation import Validation
from fedif_flower.valuation.shapley.valuation import RoundGame
from tests.rounds import a_round
from tests.valuation.models import flat

N, CLASSES = 20_000, 4


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def case(request) -> tuple[nn.Module, Tensor, Tensor]:
    """A model and data in half precision, of which there are many batches."""
    torch.manual_seed(0)
    rows, labels = torch.randn(N, 6), torch.randint(CLASSES, (N,))
    return nn.Linear(6, CLASSES).to(request.param), rows.to(request.param), labels


def in_single(model: nn.Module, rows: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """Return loss and gradient of the same numbers in float32."""
    single = nn.Linear(6, CLASSES)
    single.load_state_dict(model.state_dict())
    loss = functional.cross_entropy(single(rows.float()), labels)
    found = torch.autograd.grad(loss, list(single.parameters()))
    return loss.item(), torch.cat([gradient.flatten() for gradient in found])


def test_losses_and_gradients_of_many_batches_are_not_summed_in_half_precision(case):
    model, rows, labels = case
    validation = Validation(model, rows, labels, device="cpu")
    loss, gradient = in_single(model, rows, labels)
    # Each batch's own mean and gradient are rounded: their mean is off by less than one of them.
    one_step = torch.finfo(rows.dtype).eps
    params = flat(model)
    found = validation.loss_and_gradient(params)
    assert found.loss == pytest.approx(loss, rel=one_step)
    assert validation.loss(params) == pytest.approx(loss, rel=one_step)
    assert validation.evaluate(params).loss == pytest.approx(loss, rel=one_step)
    assert found.gradient.dtype == torch.float32
    assert (found.gradient - gradient).norm() <= one_step * gradient.norm()
    worth = RoundGame(validation, a_round(params[None]), "loss")(torch.ones(1, 1).bool())
    assert worth.item() == pytest.approx(-loss, rel=one_step)
