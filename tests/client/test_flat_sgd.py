from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedif_flower.client.flat_sgd import FlatSGD, accumulating_linear_layers


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
