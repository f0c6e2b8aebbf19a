"""Trees of images, well-formed and not; torchvision's layouts, made here in small."""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.config import TaskConfig
from fedif_flower.tasks.data.datasets import load_dataset
from fedif_flower.tasks.data.sources.image_folder import ImageFolder, _decode, class_folders
from fedif_flower.tasks.data.sources.vision import CIFAR10, FashionMNIST
from fedif_flower.tasks.images import image_task
from fedif_flower.tasks.task import ClientSite


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


def test_what_is_passed_over_is_counted(tree: Path) -> None:
    assert ImageFolder(str(tree), tree).remarks() == []
    for name in ("cat/2.gif", "cat/x/3.GIF", "ant/4.dcm", "ant/README", "cat/a.\n|"):
        (tree / "train" / name).parent.mkdir(exist_ok=True)
        (tree / "train" / name).write_text("no image that is read")
    save(tree / "train/5.png", [[1, 2, 3]])
    save(tree / "train/6.PNG", [[1, 2, 3]])
    save(tree / "train/__MACOSX/cat/._1.png", [[1, 2, 3]])
    save(tree / "train/cat/@eaDir/1.png", [[1, 2, 3]])
    (tree / "train/ant/linked").symlink_to(tree / "train/cat")
    (tree / "test/list.csv").touch()
    save(tree / "val/cat/0.png", [[1, 2, 3]])
    source = ImageFolder(str(tree), tree)
    assert source.remarks() == [
        "train: 3 images are read; passed over: files .dcm (1), files .gif (2), files without a "
        "suffix (2), folder @eaDir (1), folder __MACOSX (1), images outside of a class folder (2), "
        "links to folders (1)",
        "test: 1 images are read; passed over: files .csv (1)",
        "not read beside train and test: val",
    ]
    raw = source.read()
    assert raw.classes == ("ant", "cat")
    assert raw.train.labels.tolist() == [0, 1, 1]


def test_images_that_lose_pages_or_transparency_are_counted(tree: Path) -> None:
    pages = [Image.fromarray(np.full((1, 3), value, dtype=np.uint8)) for value in (50, 100, 150)]
    pages[0].save(tree / "train/cat/2.tif", save_all=True, append_images=pages[1:])
    grey_and_alpha = np.array([[[9, 255], [9, 255], [9, 0]]], dtype=np.uint8)
    Image.fromarray(grey_and_alpha, "LA").save(tree / "test/cat/1.png")
    save(tree / "test/cat/2.png", [[1, 2, 3]], "LA")  # Opaque: it loses nothing.
    remarks = (
        "train: the first page or frame of several is read (1 images)",
        "test: transparency is left out (1 images)",
    )
    for _ in range(2):  # When the images are prepared, and afterwards.
        dataset = load_dataset("image-folder", tree)
        assert dataset.remarks == remarks
    assert dataset.train.images[3].tolist() == [[[50, 50, 50]]]


def test_images_that_are_turned_or_of_16_bits_are_counted(tree: Path) -> None:
    photo = Image.fromarray(np.array([[10, 50, 90]], dtype=np.uint8))
    turned = photo.getexif()
    turned[0x0112] = 3  # By 180 degrees.
    photo.save(tree / "train/cat/2.png", exif=turned)
    photo.save(tree / "train/cat/3.tif", exif=turned)  # Pillow turns it by itself.
    (tree / "train/cat/4.png").write_bytes(colours_of_16_bits([0x0A07, 0x3207, 0x5A07]))
    lost: Counter[str] = Counter()
    read = [_decode(str(tree / "train/cat" / name), lost) for name in ("2.png", "3.tif", "4.png")]
    assert [image[0].tolist() for image in read] == [[[10, 50, 90]], [[90, 50, 10]], [[10, 50, 90]]]
    assert lost == {
        "the orientation that EXIF names is left out": 1,
        "the lower 8 of 16 bits are left out": 1,
    }


def colours_of_16_bits(values: list[int]) -> bytes:
    """Return a PNG of one row, whose three colours have the same values; Pillow writes none."""

    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", len(values), 1, 16, 2, 0, 0, 0)
    row = b"\0" + b"".join(struct.pack(">H", value) * 3 for value in values)
    pixels = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + pixels


def test_remarks_are_those_of_the_folder_though_the_images_are_prepared(tree: Path, caplog) -> None:
    before = load_dataset("image-folder", tree)
    assert before.remarks == ()
    (tree / "train/cat/2.gif").touch()
    after = load_dataset("image-folder", tree)
    assert after.fingerprint == before.fingerprint
    remark = "train: 3 images are read; passed over: files .gif (1)"
    assert after.remarks == (remark,)
    task = image_task(TaskConfig(dataset="image-folder", data_dir=str(tree), model="mlp"))
    assert task.remarks == (remark,)
    assert f"{tree}: {remark}" in caplog.text
    caplog.clear()
    own = ClientSite(data_dir=tree, num_partitions=None)
    for _ in range(2):
        task.load("client_data", own)
    assert caplog.text.count(remark) == 1  # Once at a member.


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


def test_the_next_run_of_a_process_reads_files_that_have_changed(tree: Path) -> None:
    settings = TaskConfig(dataset="image-folder", data_dir=str(tree), model="mlp")
    site = ClientSite(data_dir=tree, num_partitions=1)
    assert len(image_task(settings).load("client_data", site)[1]) == 3
    (tree / "train/cat/1.png").unlink()
    assert len(image_task(settings).load("client_data", site)[1]) == 2


def test_no_folder_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="data_dir = ''"):
        ImageFolder("", Path("unused")).identity()


DEEP = Image.fromarray(np.array([[1, 60_000]], dtype=np.uint16))
SPOILED = [
    (lambda d: (d / "train").rename(d / "away"), r"no images in .*/train; expected train/<class>/"),
    (lambda d: save(d / "test/dog/0.png", [[1, 2, 3]]), r"test/dog .*ant, cat"),
    (lambda d: (d / "train/cat/9.png").symlink_to(d / "nowhere.png"), r"9\.png"),
    (lambda d: save(d / "test/cat/odd.png", [[1, 2]]), r"odd\.png .*\(1, 1, 2\) but .*deep\.PNG"),
    (lambda d: save(d / "train/cat/odd.png", [[[1] * 3]]), r"odd\.png .*\(3, 1, 1\) but .*deep"),
    (
        lambda d: DEEP.save(d / "train/cat/2.png"),
        r"2\.png has Pillow's mode 'I(;16)?'; allowed: .*RGB",
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


# -- torchvision's


RNG = np.random.default_rng(0)
PIXELS = {"train": RNG.integers(0, 256, (5, 28, 28)), "t10k": RNG.integers(0, 256, (2, 28, 28))}
LABELS = {"train": [9, 0, 3, 3, 1], "t10k": [7, 2]}


def write_fashion_mnist(root: Path) -> None:
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, pixels in PIXELS.items():
        header = struct.pack(">IIII", 0x803, *pixels.shape)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.astype("u1").tobytes())
        header = struct.pack(">II", 0x801, len(pixels))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(header + bytes(LABELS[part]))


def test_fashion_mnist_is_read_where_it_lies(tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path / "data")
    source = FashionMNIST(str(tmp_path / "data"), tmp_path / "cache")
    source.fetch()
    raw = source.read()
    for split, name in ((raw.train, "train"), (raw.test, "t10k")):
        assert np.array_equal(np.concatenate(list(split.blocks())), PIXELS[name][:, None])
        assert split.labels.tolist() == LABELS[name]
    assert raw.image_shape == (1, 28, 28)
    assert raw.classes[0] == "T-shirt/top"
    assert not (tmp_path / "cache").exists()
    before = source.identity()
    damaged = tmp_path / "data/FashionMNIST/raw/train-images-idx3-ubyte"
    damaged.write_bytes(b"\0" * 20)
    assert source.identity() != before
    with pytest.raises(DataError, match=r"Fashion-MNIST in .*raw is damaged"):
        source.read()


def test_colour_images_are_read_channel_by_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = RNG.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
    opened = Mock(data=pixels, targets=[0, 1, 2, 3, 4, 5], classes=["a", "b"])
    monkeypatch.setattr(CIFAR10, "_open", Mock(return_value=opened))
    raw = CIFAR10("", Path("unused")).read()
    assert np.array_equal(np.concatenate(list(raw.train.blocks())), pixels.transpose(0, 3, 1, 2))
    assert raw.test.labels.tolist() == opened.targets
    assert raw.image_shape == (3, 32, 32)
    theirs = torchvision.datasets.CIFAR10
    names = [name for name, _ in theirs.train_list + theirs.test_list]
    assert CIFAR10.files == (*names, theirs.meta["filename"])
    assert CIFAR10.folder == theirs.base_folder


WANTED = [(FashionMNIST, "t10k-images-idx3-ubyte"), (CIFAR10, "test_batch")]


@pytest.mark.parametrize(("kind", "wanted"), WANTED)
def test_download_that_fails_says_what_to_put_where(tmp_path, monkeypatch, kind, wanted) -> None:
    monkeypatch.setattr(kind, "_open", Mock(side_effect=OSError("no network")))
    with pytest.raises(DataError, match=f"could not be downloaded.*{wanted}.*{tmp_path}"):
        kind(str(tmp_path), tmp_path / "cache").fetch()
    with pytest.raises(DataError, match="mistyped': there is no such folder"):
        kind(str(tmp_path / "mistyped"), tmp_path / "cache").fetch()
