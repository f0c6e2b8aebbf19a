"""Trees of images, well-formed and not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.data.sources.image_folder import ImageFolder


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


def test_identity_follows_every_change(tree: Path) -> None:
    def identity() -> dict[str, object]:
        return ImageFolder(str(tree), tree).identity()

    seen = [identity()]
    assert identity() == seen[0]
    os.utime(tree / "train/cat/0.png", ns=(1, 1))
    seen.append(identity())
    save(tree / "test/ant/0.png", [[1, 1, 1]])
    seen.append(identity())
    (tree / "train/cat/1.png").unlink()
    seen.append(identity())
    (tree / "train/dog").mkdir()
    seen.append(identity())
    assert len({str(item) for item in seen}) == 5


def test_no_folder_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="data_dir = ''"):
        ImageFolder("", Path("unused")).identity()


def empty(tree: Path) -> None:
    (tree / "train").rename(tree / "away")


def unknown_class(tree: Path) -> None:
    save(tree / "test/dog/0.png", [[1, 2, 3]])


def dangling_link(tree: Path) -> None:
    (tree / "train/cat/9.png").symlink_to(tree / "nowhere.png")


def other_size(tree: Path) -> None:
    save(tree / "test/cat/odd.png", [[1, 2]])


def other_mode(tree: Path) -> None:
    save(tree / "train/cat/odd.png", [[[1] * 3]])


def sixteen_bits(tree: Path) -> None:
    Image.fromarray(np.array([[1, 60_000]], dtype=np.uint16)).save(tree / "train/cat/2.png")


def damaged(tree: Path) -> None:
    os.truncate(tree / "train/cat/0.png", 45)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (empty, r"no images in .*/train; expected train/<class>/"),
        (unknown_class, r"test/dog .*ant, cat"),
        (dangling_link, r"9\.png"),
        (other_size, r"odd\.png has .*\(1, 1, 2\) but .*deep\.PNG"),
        (other_mode, r"odd\.png has .*\(3, 1, 1\) but .*deep\.PNG"),
        (sixteen_bits, r"2\.png has Pillow's mode 'I;16'; allowed: .*RGB"),
        (damaged, r"cannot read the image .*0\.png"),
    ],
)
def test_what_cannot_be_read_is_named(spoil, reason, tree: Path) -> None:
    spoil(tree)
    source = ImageFolder(str(tree), tree)
    with pytest.raises(DataError, match=reason):
        [images(split) for split in (source.read().train, source.read().test)]
