"""Data sets by name, from the first preparation to what a run sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.data import DATASETS, Dataset, load_dataset

SHARED = Path(__file__).parents[3].parent / "shared" / "data"


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


def test_digits_fingerprint_is_the_same_in_every_cache(digits: Dataset, tmp_path: Path) -> None:
    again = load_dataset("digits", cache_dir=tmp_path, verify=True)
    assert again.fingerprint == digits.fingerprint
    assert int(again.fingerprint, 16) > 0


def test_cache_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_dataset("digits")
    assert list(tmp_path.glob("fedif-flower/digits-*/meta.json"))


def test_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dataset = 'mnist'; allowed: digits, ") as caught:
        load_dataset("mnist", cache_dir=tmp_path)
    assert all(name in str(caught.value) for name in DATASETS)


def test_image_folder_by_hand(tree: Path, tmp_path: Path) -> None:
    dataset = load_dataset("image-folder", tree, cache_dir=tmp_path)
    assert dataset.classes == ("a", "b")
    assert dataset.train.images[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert dataset.train.labels.tolist() == [0, 0, 1]
    assert dataset.test.images[:, 0, 0, 0].tolist() == [30]
    assert dataset.test.labels.tolist() == [1]
    assert dataset.max_value == 255
    assert dataset.mean == pytest.approx((10 / 255,))
    assert dataset.std == pytest.approx(((200 / 3) ** 0.5 / 255,))


def test_image_folder_that_changes_is_read_anew(tree: Path, tmp_path: Path) -> None:
    before = load_dataset("image-folder", tree, cache_dir=tmp_path)
    Image.fromarray(np.full((2, 4), 99, dtype=np.uint8)).save(tree / "train/b/1.png")
    after = load_dataset("image-folder", tree, cache_dir=tmp_path)
    assert after.train.images[:, 0, 0, 0].tolist() == [0, 10, 20, 99]
    assert len(before.train) == 3
    assert before.fingerprint != after.fingerprint


def test_test_split_may_be_missing_only_where_none_is_required(tree: Path, tmp_path: Path) -> None:
    (tree / "test").rename(tmp_path / "away")
    with pytest.raises(DataError, match=f"no test images in {tree / 'test'}"):
        load_dataset("image-folder", tree, cache_dir=tmp_path)
    dataset = load_dataset("image-folder", tree, cache_dir=tmp_path, require_test=False)
    assert len(dataset.train) == 3
    assert dataset.test.images.shape == (0, 1, 2, 4)
    (tmp_path / "away").rename(tree / "test")
    assert len(load_dataset("image-folder", tree, cache_dir=tmp_path).test) == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real Fashion-MNIST is not on this machine")
def test_real_fashion_mnist(tmp_path: Path) -> None:
    dataset = load_dataset("fashion-mnist", SHARED, cache_dir=tmp_path)
    assert dataset.train.images.shape == (60_000, 1, 28, 28)
    assert dataset.test.images.shape == (10_000, 1, 28, 28)
    assert np.bincount(dataset.train.labels).tolist() == [6_000] * 10
    pixels = dataset.train.images / 255
    assert pixels.mean() == pytest.approx(dataset.mean[0], abs=5e-5)
    assert pixels.std() == pytest.approx(dataset.std[0], abs=5e-5)
