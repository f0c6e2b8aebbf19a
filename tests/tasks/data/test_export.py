"""Images as folders, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.tasks.data import Dataset, Split, load_dataset
from fedif_flower.tasks.data.export import class_folders, export_split
from fedif_flower.tasks.data.transforms import to_pixels


def small(channels: int, classes: tuple[str, ...] = ("a", "b", "c")) -> Dataset:
    images = np.random.default_rng(0).integers(0, 256, (12, channels, 3, 4), dtype=np.uint8)
    train = Split(images, np.arange(12) % 3)
    return Dataset("small", train, train, classes, 255, (0.5,), (0.5,), "00")


def sorted_by_label(dataset: Dataset, indices: np.ndarray) -> np.ndarray:
    """Return the indices in the order in which a folder of images is read."""
    return indices[np.lexsort([indices, dataset.train.labels[indices]])]


@pytest.mark.parametrize("channels", [1, 3])
def test_export_and_load_gives_the_same_pixels(tmp_path: Path, channels: int) -> None:
    dataset = small(channels)
    partitions = [np.array([11, 0, 4]), np.array([2, 5, 8, 1])]
    for i, indices in enumerate(partitions):
        folder = tmp_path / "nodes" / str(i)
        export_split(dataset, dataset.train, indices, folder / "train")
        node = load_dataset("image-folder", folder, cache_dir=tmp_path, require_test=False)
        order = sorted_by_label(dataset, indices)
        assert np.array_equal(node.train.images, dataset.train.images[order])
        assert np.array_equal(node.train.labels, dataset.train.labels[order])
        assert node.classes == dataset.classes


def test_files_are_named_by_class_and_index(tmp_path: Path) -> None:
    dataset = small(1)
    export_split(dataset, dataset.train, np.array([2, 11]), tmp_path / "train")
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    assert files == ["train/c/02.png", "train/c/11.png"]
    # The classes without examples are there, so that labels stay what they are.
    assert sorted(p.name for p in (tmp_path / "train").iterdir()) == ["a", "b", "c"]


def test_digits_come_back_up_to_rounding(tmp_path: Path) -> None:
    digits = load_dataset("digits", cache_dir=tmp_path)
    indices = np.arange(0, 1197, 40)
    export_split(digits, digits.train, indices, tmp_path / "train")
    node = load_dataset("image-folder", tmp_path, cache_dir=tmp_path, require_test=False)
    order = sorted_by_label(digits, indices)
    expected = to_pixels(digits.train.images[order], digits.max_value)
    error = (to_pixels(node.train.images, node.max_value) - expected).abs().max()
    assert 0 < error <= 0.5 / 255 + 1e-7
    assert np.array_equal(node.train.labels, digits.train.labels[order])


@given(st.lists(st.text(max_size=5), min_size=1, max_size=12))
def test_class_folders_sort_in_label_order_and_stay_inside(classes: list[str]) -> None:
    names = class_folders(classes)
    assert len(names) == len(classes)
    assert sorted(set(names)) == names
    for name in names:
        assert Path(name).name == name != ""
        assert not name.startswith(".")


def test_class_folders_keep_names_that_sort() -> None:
    assert class_folders(["airplane", "cat", "ship"]) == ["airplane", "cat", "ship"]
    assert class_folders([str(i) for i in range(11)])[1:3] == ["01-1", "02-2"]
