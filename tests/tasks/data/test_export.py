"""Images as folders, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.tasks.data.cache import Dataset, Split
from fedif_flower.tasks.data.datasets import load_dataset, to_pixels
from fedif_flower.tasks.data.export import class_folders, export_split


def small(channels: int) -> Dataset:
    images = np.random.default_rng(0).integers(0, 256, (12, channels, 3, 4), dtype=np.uint8)
    train = Split(images, np.arange(12) % 3)
    return Dataset("small", train, train, ("a", "b", "c"), 255, (0.5,), (0.5,), "00")


@pytest.mark.parametrize("which", ["greyscale", "colour", "digits"])
def test_what_is_written_is_read_again(tmp_path: Path, which: str) -> None:
    dataset = {"greyscale": small(1), "colour": small(3)}.get(which)
    dataset = dataset or load_dataset("digits", cache_dir=tmp_path)
    indices = np.array([11, 2, 5, 8])
    export_split(dataset, dataset.train, indices, tmp_path / "train")
    node = load_dataset("image-folder", tmp_path, cache_dir=tmp_path, require_test=False)
    order = indices[np.lexsort([indices, dataset.train.labels[indices]])]  # As folders are read.
    expected = to_pixels(dataset.train.images[order], dataset.max_value)
    error = float((to_pixels(node.train.images, node.max_value) - expected).abs().max())
    assert error <= (0.5 / 255 + 1e-7 if which == "digits" else 0)
    assert np.array_equal(node.train.labels, dataset.train.labels[order])
    assert node.classes == dataset.classes  # Also those without examples.
    assert len(list(tmp_path.glob("train/*/*02.png"))) == 1


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
