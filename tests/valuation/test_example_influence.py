from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedif_flower.valuation.example_influence import (
    example_influence,
    neighbour_agreement,
    representations,
)
from fedif_flower.valuation.objective import PairObjective


def line(weights: list[float], bias: float) -> nn.Module:
    model = nn.Linear(len(weights), 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
        model.bias.fill_(bias)
    return model.eval()


def test_losses_and_products_of_a_linear_model_by_hand():
    # f(x) = 2 a - b + 1; squared loss; gradient 2 (f(x) - y) (a, b, 1).
    model = line([2.0, -1.0], 1.0)
    inputs = torch.tensor([[1.0, 1.0], [0.0, 2.0], [3.0, 0.0]])  # f = 2, -1, 7
    targets = torch.tensor([[0.0], [-1.0], [8.0]])  # errors 2, 0, -1
    gradient = torch.tensor([1.0, 10.0, 100.0])
    objective = PairObjective(functional.mse_loss)
    found = example_influence(model, objective, [(inputs, targets)], gradient)
    assert found.losses.tolist() == [4.0, 0.0, 1.0]
    # 2 * 2 * (1 + 10 + 100); 0; 2 * -1 * (3 + 0 + 100)
    assert found.products.tolist() == [444.0, 0.0, -206.0]


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    ).eval()


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_the_mean_of_the_products_is_that_of_the_mean_s_gradient(batch_size):
    model = small_model()
    inputs, targets = torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    parameters = list(model.parameters())
    loss = functional.cross_entropy(model(inputs), targets)
    mean = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])
    direction = torch.randn(len(mean))
    batches = list(zip(inputs.split(batch_size), targets.split(batch_size), strict=True))
    found = example_influence(model, PairObjective(functional.cross_entropy), batches, direction)
    assert float(found.products.mean()) == pytest.approx(float(mean @ direction), rel=1e-4)
    assert float(found.losses.mean()) == pytest.approx(loss.item(), rel=1e-5)
    assert all(parameter.grad is None for parameter in parameters)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Twice(nn.Module):
    def __init__(self, linear: nn.Module, *, forward_differentiable: bool) -> None:
        super().__init__()
        self.linear, self.plain = linear, forward_differentiable

    def forward(self, x):
        found = self.linear(x)
        return 2 * found if self.plain else Doubled.apply(found)


def test_a_layer_without_forward_differentiation_gives_the_same():
    linear = nn.Linear(2, 1)
    batch = (torch.randn(3, 2), torch.randn(3, 1))
    direction = torch.tensor([1.0, -2.0, 3.0])
    by_hand, found = (
        example_influence(
            Twice(linear, forward_differentiable=plain).eval(),
            PairObjective(functional.mse_loss),
            [batch],
            direction,
        )
        for plain in (True, False)
    )
    assert torch.allclose(found.products, by_hand.products, rtol=1e-4)
    assert torch.allclose(found.losses, by_hand.losses, rtol=1e-5)


def test_agreement_of_neighbours_by_hand():
    # Two pairs of directions; the last of the second has another label than its neighbour.
    features = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 5.0]])
    labels = torch.tensor([0, 0, 1, 0])
    assert neighbour_agreement(features, labels, 1).tolist() == [1.0, 1.0, 0.0, 0.0]
    # Of all others: 2, 2, 0 and 2 of 3 have the same label; more than there are count as all.
    expected = [2 / 3, 2 / 3, 0.0, 2 / 3]
    assert neighbour_agreement(features, labels, 9).tolist() == pytest.approx(expected)


def test_representations_are_what_the_last_linear_layer_is_given():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
    batches = [(torch.tensor([[1.0, -1.0]]), torch.tensor([0]))] * 2
    assert representations(model, batches).tolist() == [[1.0, 0.0]] * 2
    assert not model[2]._forward_pre_hooks
    plain = nn.Flatten()
    assert representations(plain, batches).tolist() == [[1.0, -1.0]] * 2
