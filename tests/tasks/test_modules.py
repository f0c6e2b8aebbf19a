from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower.tasks.modules import (
    frozen_parameters,
    lay_out,
    module_mode,
    seeded_randomness,
    single_value_norms,
)


class ChannelsLast(nn.Conv2d):
    memory_format = torch.channels_last


@pytest.mark.parametrize("channels", [1, 3])
def test_lay_out_follows_the_model_s_memory_format(channels):
    images = torch.rand(2, channels, 4, 5)
    laid_out = lay_out(ChannelsLast(channels, 2, 3), images)
    assert torch.equal(laid_out, images)
    assert laid_out.stride() == (20 * channels, 1, 5 * channels, channels)
    assert lay_out(nn.Conv2d(channels, 2, 3), laid_out).is_contiguous()


def test_lay_out_leaves_examples_that_are_no_images():
    rows = torch.rand(3, 4)
    assert lay_out(ChannelsLast(1, 1, 1), rows) is rows


def test_seeded_randomness_is_a_parenthesis():
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    draws = []
    for _ in range(2):
        with seeded_randomness(99, torch.device("cpu")):
            draws.append(torch.rand(4))
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(torch.rand(4), expected)


def test_modes_and_requires_grad_return_to_what_each_had_also_after_an_error():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    model[1].eval()
    model[0].bias.requires_grad_(False)

    def fail_inside() -> None:
        with module_mode(model, training=False), frozen_parameters(model):
            assert not any(module.training for module in model.modules())
            assert not any(parameter.requires_grad for parameter in model.parameters())
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()
    assert [module.training for module in model.modules()] == [True, True, False]
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False]


def test_only_norms_on_1x1_maps_have_one_value_and_looking_changes_nothing():
    model = nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.BatchNorm1d(3)
    )
    lonely = single_value_norms(model, torch.rand(1, 2, 2, 2))
    assert lonely == [model[2], model[4]]
    assert model.training
    assert all(int(norm.num_batches_tracked) == 0 for norm in (model[0], model[2], model[4]))
    assert not model[2]._forward_pre_hooks
    assert single_value_norms(nn.Linear(2, 2), torch.rand(1, 2)) == []
