from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedif_consortium.member.example_influence import (
    example_influence,
    neighbour_agreement,
)
from fedif_flower.valuation.objective import Objective, PairObjective
from tests.valuation.models import whole


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


class Twice(nn.Linear):
    """Has no forward differentiation."""

    def forward(self, x):
        return Doubled.apply(super().forward(x))


@pytest.mark.parametrize(("kind", "factor"), [(nn.Linear, 1), (Twice, 2)])
def test_losses_and_products_of_a_linear_model_by_hand(kind, factor):
    # f(x) = 2 a - b + 1; squared loss; gradient 2 (f(x) - y) (a, b, 1), twice if half is doubled.
    model, values = kind(2, 1).eval(), torch.tensor([2.0, -1.0, 1.0]) / factor
    nn.utils.vector_to_parameters(values, model.parameters())
    inputs = torch.tensor([[1.0, 1.0], [0.0, 2.0], [3.0, 0.0]])  # f = 2, -1, 7
    targets = torch.tensor([[0.0], [-1.0], [8.0]])  # errors 2, 0, -1
    gradient = torch.tensor([1.0, 10.0, 100.0])
    objective = PairObjective(functional.mse_loss)
    found = example_influence(model, objective, [(inputs, targets)], gradient)
    assert found.losses.tolist() == [4.0, 0.0, 1.0]
    # 2 * 2 * (1 + 10 + 100); 0; 2 * -1 * (3 + 0 + 100)
    assert (found.products / factor).tolist() == [444.0, 0.0, -206.0]


def test_the_mean_of_the_products_is_that_of_the_mean_s_gradient():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    model, mean_loss = nn.Sequential(*layers).eval(), functional.cross_entropy
    inputs, targets = torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    _, mean = whole(model, mean_loss, inputs, targets)
    direction = torch.randn(len(mean))
    batches = list(zip(inputs.split(2), targets.split(2), strict=True))
    for objective in (
        PairObjective(mean_loss),
        Objective(lambda model, batch: (mean_loss(model(batch[0]), batch[1]), len(batch[1]))),
    ):
        found = example_influence(model, objective, batches, direction)
        assert float(found.products.mean()) == pytest.approx(float(mean @ direction), rel=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_agreement_of_neighbours_by_hand():
    # Two pairs of directions; the last of the second has another label than its neighbour.
    features = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 5.0]])
    labels = torch.tensor([0, 0, 1, 0])
    assert neighbour_agreement(features, labels, 1).tolist() == [1.0, 1.0, 0.0, 0.0]
