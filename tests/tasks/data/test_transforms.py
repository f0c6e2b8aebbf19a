"""Bytes to pixels to normalised inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.tasks.data.transforms import NORMALIZATIONS, Normalization, normalize, to_pixels


def test_to_pixels_by_hand() -> None:
    images = np.array([[[[0, 4], [8, 16]]]], dtype=np.uint8)
    pixels = to_pixels(images, 16)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels, torch.tensor([[[[0.0, 0.25], [0.5, 1.0]]]]))


def test_to_pixels_of_a_read_only_map_is_a_new_tensor(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    np.save(tmp_path / "a.npy", np.full((2, 1, 2, 2), 255, dtype=np.uint8))
    images = np.load(tmp_path / "a.npy", mmap_mode="r")
    to_pixels(images, 255).zero_()
    assert int(images.min()) == 255
    assert not recwarn.list


@given(st.integers(1, 255))
def test_to_pixels_ends_exactly_at_one(max_value: int) -> None:
    values = np.arange(max_value + 1, dtype=np.uint8).reshape(-1, 1, 1, 1)
    pixels = to_pixels(values, max_value).flatten()
    assert pixels[0] == 0
    assert pixels[-1] == 1
    assert bool((pixels.diff() > 0).all())


def test_normalize_by_hand_per_channel() -> None:
    pixels = torch.tensor([[[[1.0]], [[0.5]]]])  # [1, 2, 1, 1]
    result = normalize(pixels, (0.5, 0.25), (0.25, 0.5))
    assert torch.equal(result, torch.tensor([[[[2.0]], [[0.5]]]]))


def test_normalize_is_differentiable() -> None:
    pixels = torch.rand(2, 1, 3, 3, requires_grad=True)
    normalize(pixels, (0.3,), (0.25,)).sum().backward()
    assert torch.equal(pixels.grad, torch.full_like(pixels, 4.0))


def test_normalization_gives_zero_mean_and_unit_deviation() -> None:
    pixels = torch.rand(50, 3, 4, 4, dtype=torch.float64)
    mean = tuple(pixels.mean(dim=(0, 2, 3)).tolist())
    std = tuple(pixels.std(dim=(0, 2, 3), correction=0).tolist())
    result = Normalization(mean, std)(pixels)
    assert result.dtype == torch.float64
    assert torch.allclose(result.mean(dim=(0, 2, 3)), torch.zeros(3, dtype=torch.float64))
    assert torch.allclose(
        result.std(dim=(0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64)
    )


@pytest.mark.parametrize("std", [(0.0,), (-1.0,), (float("nan"),), (1.0, 1.0), ()])
def test_normalization_refuses_what_cannot_divide(std: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Normalization((0.5,), std)


def test_choices_of_moments() -> None:
    mean, std = (0.25, 0.5, 0.75), (0.1, 0.2, 0.3)
    assert NORMALIZATIONS["data"](mean, std) == Normalization(mean, std)
    unit_range = NORMALIZATIONS["unit-range"](mean, std)
    ends = torch.tensor([0.0, 1.0]).expand(3, 1, 2)
    assert torch.equal(unit_range(ends), 2 * ends - 1)
