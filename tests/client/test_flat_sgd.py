from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower.client.flat_sgd import FlatSGD


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
