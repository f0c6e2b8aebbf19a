"""Data sets by name, from the first preparation to what a run sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.data.cache import Dataset, channel_moments
from fedif_flower.tasks.data.datasets import DATASETS, NORMALIZATIONS, load_dataset, to_pixels


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def test_every_scan_of_digits_is_in_exactly_one_split(digits: Dataset) -> None:
    assert digits.train.images.shape == (1197, 1, 8, 8)
    assert digits.test.images.shape == (600, 1, 8, 8)
    assert digits.image_shape == (1, 8, 8)
    assert digits.max_value == 16
    splits = digits.train, digits.test
    ours = [np.column_stack([split.images.reshape(-1, 64), split.labels]) for split in splits]
    theirs = np.column_stack(load_digits(return_X_y=True))
    assert sorted(np.concatenate(ours).tolist()) == sorted(theirs.tolist())
    assert set(digits.train.labels[:50]) == set(range(10))  # It is shuffled.
    pixels = digits.train.images / 16
    assert digits.mean == pytest.approx((pixels.mean(),))
    assert digits.std == pytest.approx((pixels.std(),))


def test_the_fingerprint_is_the_same_in_every_cache(digits, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_dataset("digits").fingerprint == digits.fingerprint
    assert list(tmp_path.glob("fedif-flower/digits-*/meta.json"))


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="dataset = 'mnist'; allowed: digits, ") as caught:
        load_dataset("mnist")
    assert all(name in str(caught.value) for name in DATASETS)


def test_bytes_become_pixels_and_are_normalised_by_channel(digits: Dataset) -> None:
    pixels = to_pixels(digits.train.images, digits.max_value)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels * 16, torch.tensor(np.array(digits.train.images)).float())
    two = torch.tensor([[[[1.0]], [[0.5]]]], requires_grad=True)  # [1, 2, 1, 1]
    result = NORMALIZATIONS["data"]((0.5, 0.25), (0.25, 0.5))(two)
    assert result.flatten().tolist() == [2.0, 0.5]
    result.sum().backward()
    assert two.grad.flatten().tolist() == [4.0, 2.0]
    ends = torch.tensor([0.0, 1.0]).expand(3, 1, 2)
    assert torch.equal(NORMALIZATIONS["unit-range"]((0.2,) * 3, (0.1,) * 3)(ends), 2 * ends - 1)


def test_channel_moments_of_many_blocks_are_those_of_the_whole() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 1200, 1200), dtype=np.uint8)
    mean, std = channel_moments(images, 255)
    pixels = images / 255
    assert mean == pytest.approx(tuple(pixels.mean(axis=(0, 2, 3))))
    assert std == pytest.approx(tuple(pixels.std(axis=(0, 2, 3))))
