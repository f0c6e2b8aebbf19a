from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedif_flower.client.flat_sgd import FlatSGD, accumulating_linear_layers


def test_the_first_two_steps_by_hand():
    # Gradient of 3 w is 3; lr = 0.1, momentum = 0.5: w = 1 - 0.3, then - 0.1 * (1.5 + 3).
    weight = nn.Parameter(torch.tensor([1.0]))
    with FlatSGD([weight], learning_rate=0.1, momentum=0.5) as sgd:
        for expected in (0.7, 0.25):
            sgd.before_backward()
            (3 * weight).sum().backward()
            sgd.after_backward()
            assert weight.item() == pytest.approx(expected)
    assert weight.item() == pytest.approx(0.25)


def test_parameters_of_any_shape_and_length_do_not_touch_each_other():
    shapes = [(3,), (), (2, 17), (16,), (5, 1, 2)]
    parameters = [nn.Parameter(torch.full(shape, float(i))) for i, shape in enumerate(shapes)]
    memory = [parameter.data_ptr() for parameter in parameters]
    with FlatSGD(parameters, learning_rate=1.0, momentum=0.0) as sgd:
        sgd.before_backward()
        sum((i * p).sum() for i, p in enumerate(parameters)).backward()
        sgd.after_backward()
    for parameter, shape in zip(parameters, shapes, strict=True):
        assert torch.equal(parameter.detach(), torch.zeros(shape))
        assert parameter.grad is None
    assert [parameter.data_ptr() for parameter in parameters] == memory


def test_an_error_inside_still_gives_the_parameters_their_memory_back():
    weight = nn.Parameter(torch.ones(3))
    memory = weight.data_ptr()
    with (
        pytest.raises(RuntimeError, match="stop"),
        FlatSGD([weight], learning_rate=1.0, momentum=0.0),
    ):
        raise RuntimeError("stop")
    assert weight.data_ptr() == memory


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_shape", [(4,), (2, 3)])
def test_accumulating_layers_add_the_gradient_autograd_computes(bias, batch_shape):
    layer = nn.Linear(400, 300, bias=bias)
    reference = copy.deepcopy(layer)
    inputs = torch.randn(*batch_shape, 400, requires_grad=True)
    reference_inputs = inputs.detach().clone().requires_grad_()
    for parameter in [*layer.parameters(), *reference.parameters()]:
        parameter.grad = torch.ones_like(parameter)  # What is there already is kept.
    functional.softplus(reference(reference_inputs)).sum().backward()
    with accumulating_linear_layers(nn.Sequential(layer)):
        assert "forward" in vars(layer)
        functional.softplus(layer(inputs)).sum().backward()
    assert "forward" not in vars(layer)
    torch.testing.assert_close(inputs.grad, reference_inputs.grad)
    for parameter, expected in zip(layer.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)


def test_small_frozen_and_subclassed_layers_are_left_to_autograd():
    class Scaled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    small, frozen, scaled = nn.Linear(4, 4), nn.Linear(400, 300), Scaled(400, 300)
    frozen.weight.requires_grad_(False)
    with accumulating_linear_layers(nn.ModuleList([small, frozen, scaled])):
        assert not any("forward" in vars(layer) for layer in (small, frozen, scaled))
