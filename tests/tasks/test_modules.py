from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from fedif_flower.tasks.modules import (
    image_format,
    module_mode,
    seeded_randomness,
    sparing_single_values,
    tied_names,
    to_memory_format,
    trainable_names,
)


class Viewing(nn.Conv2d):
    """As in Flower's quickstart: ``view`` on the maps of a convolution."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).view(-1, 12)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_get_channels_last_where_the_model_works_with_them(channels):
    images = torch.rand(2, channels, 4, 5)
    flattening = nn.Sequential(nn.Conv2d(channels, 2, 3), nn.Flatten(), nn.Linear(12, 2))
    assert image_format(flattening, images) is torch.channels_last
    laid_out = to_memory_format(images, torch.channels_last)
    assert torch.equal(laid_out, images)
    assert laid_out.stride() == (20 * channels, 1, 5 * channels, channels)
    assert to_memory_format(laid_out, torch.channels_last) is laid_out  # nothing is copied twice
    assert to_memory_format(laid_out, torch.contiguous_format).is_contiguous()


def test_models_that_view_their_maps_or_have_none_and_other_examples_stay_contiguous():
    rows, images = torch.rand(3, 4), torch.rand(2, 3, 4, 5)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(60, 2))
    for model, examples in ((Viewing(3, 2, 3), images), (nn.Linear(4, 1), rows), (flat, images)):
        assert image_format(model, examples) is torch.contiguous_format
    assert to_memory_format(rows, torch.channels_last) is rows


def test_names_of_a_tied_parameter():
    model = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "head": nn.Linear(2, 3)})
    assert tied_names(model) == {}
    model["head"].weight = model["embedding"].weight
    assert trainable_names(model) == ["embedding.weight", "head.bias"]
    assert tied_names(model) == {"head.weight": "embedding.weight"}


def test_seeded_randomness_is_a_parenthesis():
    before, draws = torch.get_rng_state(), []
    for _ in range(2):
        with seeded_randomness(99, torch.device("cpu")):
            draws.append(torch.rand(4))
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_modes_return_to_what_each_had_also_after_an_error():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    model[1].eval()
    with suppress(RuntimeError), module_mode(model, training=False):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == [True, True, False]


def test_norms_on_1x1_maps_spare_a_single_value_and_others_do_not():
    model = nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.BatchNorm1d(3)
    )
    with sparing_single_values(model):
        model(torch.rand(1, 2, 2, 2))
    assert [int(model[i].num_batches_tracked) for i in (0, 2, 4)] == [1, 0, 0]
    assert all(module.training and not module._forward_pre_hooks for module in model)
