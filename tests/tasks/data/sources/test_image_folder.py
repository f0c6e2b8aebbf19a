"""Trees of images, well-formed and not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.data.datasets import load_dataset
from fedif_flower.tasks.data.sources.image_folder import ImageFolder, class_folders


def save(path: Path, pixels: object, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.array(pixels, dtype=np.uint8))
    (image.convert(mode) if mode else image).save(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    save(tmp_path / "train/cat/1.png", [[1, 2, 3]])
    save(tmp_path / "train/cat/0.png", [[4, 5, 6]])
    save(tmp_path / "train/ant/x/deep.PNG", [[7, 8, 9]])
    save(tmp_path / "test/cat/0.png", [[0, 0, 255]])
    return tmp_path


def images(split) -> list[object]:
    return np.concatenate(list(split.blocks())).tolist()


def test_images_are_sorted_by_class_and_name_and_all_else_is_passed_over(tree: Path) -> None:
    (tree / "train/cat/notes.txt").write_text("no image")
    (tree / "train/cat/.hidden.png").write_text("no image")
    (tree / "train/.ipynb_checkpoints").mkdir()
    (tree / "train/list.csv").touch()
    raw = ImageFolder(str(tree), tree).read()
    assert raw.classes == ("ant", "cat")
    assert raw.image_shape == (1, 1, 3)
    assert raw.train.labels.tolist() == [0, 1, 1]
    assert images(raw.train) == [[[[7, 8, 9]]], [[[4, 5, 6]]], [[[1, 2, 3]]]]
    # "cat" is the only class of test, and keeps the label that train gives it.
    assert raw.test.labels.tolist() == [1]
    assert images(raw.test) == [[[[0, 0, 255]]]]


def test_colour_is_rgb_a_class_may_be_empty_and_test_missing(tmp_path: Path) -> None:
    save(tmp_path / "train/b/0.png", [[[1, 2, 3], [4, 5, 6]]])
    save(tmp_path / "train/b/1.png", [[[1, 2, 3], [4, 5, 6]]], "RGBA")
    (tmp_path / "train/a").mkdir()
    raw = ImageFolder(str(tmp_path), tmp_path).read()
    assert images(raw.train) == [[[[1, 4]], [[2, 5]], [[3, 6]]]] * 2
    assert raw.classes == ("a", "b")
    assert raw.train.labels.tolist() == [1, 1]
    assert raw.test.labels.shape == (0,)


def test_the_test_split_may_be_missing_only_where_none_is_required(tree: Path) -> None:
    (tree / "test").rename(tree / "away")
    with pytest.raises(DataError, match=f"no test images in {tree / 'test'}"):
        load_dataset("image-folder", tree)
    dataset = load_dataset("image-folder", tree, require_test=False)
    assert len(dataset.train) == 3
    assert dataset.test.images.shape == (0, 1, 1, 3)


def test_identity_follows_every_change(tree: Path) -> None:
    changes = [
        lambda: os.utime(tree / "train/cat/0.png", ns=(1, 1)),
        lambda: save(tree / "test/ant/0.png", [[1, 1, 1]]),
        (tree / "train/cat/1.png").unlink,
        (tree / "train/dog").mkdir,
    ]
    seen = {str(ImageFolder(str(tree), tree).identity()) for _ in range(2)}
    for change in changes:
        change()
        seen.add(str(ImageFolder(str(tree), tree).identity()))
    assert len(seen) == 1 + len(changes)


def test_no_folder_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="data_dir = ''"):
        ImageFolder("", Path("unused")).identity()


DEEP = Image.fromarray(np.array([[1, 60_000]], dtype=np.uint16))
SPOILED = [
    (lambda d: (d / "train").rename(d / "away"), r"no images in .*/train; expected train/<class>/"),
    (lambda d: save(d / "test/dog/0.png", [[1, 2, 3]]), r"test/dog .*ant, cat"),
    (lambda d: (d / "train/cat/9.png").symlink_to(d / "nowhere.png"), r"9\.png"),
    (lambda d: save(d / "test/cat/odd.png", [[1, 2]]), r"odd\.png .*\(1, 1, 2\) but .*deep\.PNG"),
    (
        lambda d: save(d / "train/cat/odd.png", [[[1] * 3]]),
        r"odd\.png .*\(3, 1, 1\) but .*deep",
    ),
    (
        lambda d: DEEP.save(d / "train/cat/2.png"),
        r"2\.png has Pillow's mode 'I;16'; allowed: .*RGB",
    ),
    (lambda d: os.truncate(d / "train/cat/0.png", 45), r"cannot read the image .*0\.png"),
]


@pytest.mark.parametrize(("spoil", "reason"), SPOILED)
def test_what_cannot_be_read_is_named(spoil, reason, tree: Path) -> None:
    spoil(tree)
    source = ImageFolder(str(tree), tree)
    with pytest.raises(DataError, match=reason):
        [images(split) for split in (source.read().train, source.read().test)]


@given(st.lists(st.text(max_size=5), min_size=1, max_size=12))
def test_class_folders_sort_in_label_order_and_stay_inside(classes: list[str]) -> None:
    names = class_folders(classes)
    assert len(names) == len(classes)
    assert sorted(set(names)) == names
    assert all(Path(name).name == name != "" and not name.startswith(".") for name in names)


def test_class_folders_keep_names_that_sort() -> None:
    assert class_folders(["airplane", "cat", "ship"]) == ["airplane", "cat", "ship"]
    assert class_folders([str(i) for i in range(11)])[1:3] == ["01-1", "02-2"]
