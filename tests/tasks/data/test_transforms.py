"""Bytes to pixels to normalised inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedif_flower.tasks.data.transforms import NORMALIZATIONS, Normalization, to_pixels


def test_bytes_of_a_read_only_map_become_a_new_tensor_of_pixels(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    np.save(tmp_path / "a.npy", np.array([[[[0, 4], [8, 16]]]], dtype=np.uint8))
    pixels = to_pixels(np.load(tmp_path / "a.npy", mmap_mode="r"), 16)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels, torch.tensor([[[[0.0, 0.25], [0.5, 1.0]]]]))
    assert not recwarn.list


def test_normalization_by_hand_per_channel() -> None:
    pixels = torch.tensor([[[[1.0]], [[0.5]]]], requires_grad=True)  # [1, 2, 1, 1]
    result = Normalization((0.5, 0.25), (0.25, 0.5))(pixels)
    assert result.flatten().tolist() == [2.0, 0.5]
    result.sum().backward()
    assert pixels.grad.flatten().tolist() == [4.0, 2.0]


def test_choices_of_moments() -> None:
    mean, std = (0.25, 0.5, 0.75), (0.1, 0.2, 0.3)
    assert NORMALIZATIONS["data"](mean, std) == Normalization(mean, std)
    unit_range = NORMALIZATIONS["unit-range"](mean, std)
    ends = torch.tensor([0.0, 1.0]).expand(3, 1, 2)
    assert torch.equal(unit_range(ends), 2 * ends - 1)
