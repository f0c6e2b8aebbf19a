"""torchvision's layouts, made here in small, read without network."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torchvision

from fedif_flower.errors import DataError
from fedif_flower.tasks.data.sources.vision import CIFAR10, FashionMNIST

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
