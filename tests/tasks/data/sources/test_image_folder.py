"""Trees of images, well-formed and not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.data.sources import ImageFolder


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


def test_images_are_sorted_by_class_and_name(tree: Path) -> None:
    raw = ImageFolder(str(tree), tree).read()
    assert raw.classes == ("ant", "cat")
    assert raw.image_shape == (1, 1, 3)
    assert raw.train.labels.tolist() == [0, 1, 1]
    assert images(raw.train) == [[[[7, 8, 9]]], [[[4, 5, 6]]], [[[1, 2, 3]]]]
    # "cat" is the only class of test, and keeps the label that train gives it.
    assert raw.test.labels.tolist() == [1]
    assert images(raw.test) == [[[[0, 0, 255]]]]


def test_colour_is_channels_first_rgb(tmp_path: Path) -> None:
    save(tmp_path / "train/a/0.png", [[[1, 2, 3], [4, 5, 6]]])
    save(tmp_path / "train/a/1.png", [[[1, 2, 3], [4, 5, 6]]], "RGBA")
    raw = ImageFolder(str(tmp_path), tmp_path).read()
    assert raw.image_shape == (3, 1, 2)
    assert images(raw.train) == [[[[1, 4]], [[2, 5]], [[3, 6]]]] * 2


def test_folder_of_a_class_may_be_empty_and_test_missing(tmp_path: Path) -> None:
    save(tmp_path / "train/b/0.png", [[1]])
    (tmp_path / "train/a").mkdir()
    source = ImageFolder(str(tmp_path), tmp_path)
    assert not source.has_test()
    assert source.read().classes == ("a", "b")
    assert source.read().train.labels.tolist() == [1]
    assert source.read().test.labels.shape == (0,)


def test_what_is_no_image_is_passed_over(tree: Path) -> None:
    (tree / "train/cat/notes.txt").write_text("no image")
    (tree / "train/cat/.hidden.png").write_text("no image")
    (tree / "train/.ipynb_checkpoints").mkdir()
    (tree / "train/list.csv").touch()
    raw = ImageFolder(str(tree), tree).read()
    assert raw.classes == ("ant", "cat")
    assert len(images(raw.train)) == 3


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


def test_no_images_is_an_error_that_says_what_to_put_where(tmp_path: Path) -> None:
    for folder in (".", "train/a"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        with pytest.raises(DataError, match=r"no images in .*data/train; expected train/<class>/"):
            ImageFolder(str(tmp_path / "data"), tmp_path).identity()


def test_class_that_only_test_has_is_named(tree: Path) -> None:
    save(tree / "test/dog/0.png", [[1, 2, 3]])
    with pytest.raises(DataError, match=r"test/dog .*ant, cat"):
        ImageFolder(str(tree), tree).identity()


def test_dangling_link_is_named(tree: Path) -> None:
    (tree / "train/cat/9.png").symlink_to(tree / "nowhere.png")
    with pytest.raises(DataError, match=r"9\.png"):
        ImageFolder(str(tree), tree).identity()


@pytest.mark.parametrize(
    ("split", "pixels", "shape"),
    [
        ("train", [[1, 2]], "1, 1, 2"),
        ("test", [[1, 2]], "1, 1, 2"),
        ("train", [[[1] * 3]], "3, 1, 1"),
    ],
)
def test_differing_size_or_colour_is_named(
    tree: Path, split: str, pixels: object, shape: str
) -> None:
    save(tree / split / "cat/odd.png", pixels)
    raw = ImageFolder(str(tree), tree).read()
    with pytest.raises(DataError, match=rf"odd\.png has .*\({shape}\) but .*deep\.PNG"):
        images(raw.train if split == "train" else raw.test)


def test_sixteen_bits_are_refused_not_clipped(tmp_path: Path) -> None:
    (tmp_path / "train/a").mkdir(parents=True)
    Image.fromarray(np.array([[1, 60_000]], dtype=np.uint16)).save(tmp_path / "train/a/0.png")
    with pytest.raises(DataError, match=r"0\.png has Pillow's mode 'I;16'; allowed: .*RGB"):
        ImageFolder(str(tmp_path), tmp_path).read()


def test_damaged_image_is_named(tree: Path) -> None:
    path = tree / "train/cat/0.png"
    os.truncate(path, 45)
    with pytest.raises(DataError, match=rf"cannot read the image {path}"):
        images(ImageFolder(str(tree), tree).read().train)
