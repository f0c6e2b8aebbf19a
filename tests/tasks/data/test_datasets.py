"""Data sets by name, from the first preparation to what a run sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.data.cache import Dataset
from fedif_flower.tasks.data.datasets import DATASETS, NORMALIZATIONS, load_dataset, to_pixels


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_dataset("digits", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for i, name in enumerate(["train/a/0", "train/a/1", "train/b/0", "test/b/0"]):
        path = tmp_path / "data" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 4), 10 * i, dtype=np.uint8)).save(path)
    return tmp_path / "data"


def test_every_scan_of_digits_is_in_exactly_one_split(digits: Dataset) -> None:
    assert digits.train.images.shape == (1197, 1, 8, 8)
    assert digits.test.images.shape == (600, 1, 8, 8)
    assert digits.image_shape == (1, 8, 8)
    assert digits.max_value == 16
    splits = (digits.train, digits.test)
    ours = [
        (*image.ravel(), label)
        for split in splits
        for image, label in zip(split.images, split.labels, strict=True)
    ]
    scans, labels = load_digits(return_X_y=True)
    assert sorted(ours) == sorted(map(tuple, np.column_stack([scans, labels])))
    assert set(digits.train.labels[:50]) == set(range(10))  # It is shuffled.
    pixels = digits.train.images / 16
    assert digits.mean == pytest.approx((pixels.mean(),))
    assert digits.std == pytest.approx((pixels.std(),))


def test_the_cache_is_where_the_environment_says_and_the_fingerprint_the_same_anywhere(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_dataset("digits").fingerprint == digits.fingerprint
    assert list(tmp_path.glob("fedif-flower/digits-*/meta.json"))


def test_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dataset = 'mnist'; allowed: digits, ") as caught:
        load_dataset("mnist", cache_dir=tmp_path)
    assert all(name in str(caught.value) for name in DATASETS)


def test_an_image_folder_by_hand_and_after_a_change(tree: Path, tmp_path: Path) -> None:
    before = load_dataset("image-folder", tree, cache_dir=tmp_path)
    assert before.classes == ("a", "b")
    assert before.train.images[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert before.train.labels.tolist() == [0, 0, 1]
    assert before.test.images[:, 0, 0, 0].tolist() == [30]
    assert before.test.labels.tolist() == [1]
    assert before.max_value == 255
    assert before.mean == pytest.approx((10 / 255,))
    assert before.std == pytest.approx(((200 / 3) ** 0.5 / 255,))
    Image.fromarray(np.full((2, 4), 99, dtype=np.uint8)).save(tree / "train/b/1.png")
    after = load_dataset("image-folder", tree, cache_dir=tmp_path)
    assert after.train.images[:, 0, 0, 0].tolist() == [0, 10, 20, 99]
    assert before.fingerprint != after.fingerprint


def test_the_test_split_may_be_missing_only_where_none_is_required(
    tree: Path, tmp_path: Path
) -> None:
    (tree / "test").rename(tmp_path / "away")
    with pytest.raises(DataError, match=f"no test images in {tree / 'test'}"):
        load_dataset("image-folder", tree, cache_dir=tmp_path)
    dataset = load_dataset("image-folder", tree, cache_dir=tmp_path, require_test=False)
    assert len(dataset.train) == 3
    assert dataset.test.images.shape == (0, 1, 2, 4)


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
