"""torchvision's layouts, made here in small, read without network."""

from __future__ import annotations

import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision

from fedif_flower.errors import DataError
from fedif_flower.tasks.data.cache import Source
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


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Write six images as CIFAR-10's files, and let torchvision expect their checksums."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rows = RNG.integers(0, 256, (6, 3072)).astype(np.uint8)  # [6, c * h * w]

    def dump(name: str, content: object) -> list[str]:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data).hexdigest()]

    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    batches = [dump(name, {"data": rows[i : i + 1], "labels": [i]}) for i, name in enumerate(names)]
    label_names = [f"class {i}" for i in range(10)]
    name, checksum = dump("batches.meta", {"label_names": label_names})
    cifar = torchvision.datasets.CIFAR10
    monkeypatch.setattr(cifar, "train_list", batches[:5])
    monkeypatch.setattr(cifar, "test_list", batches[5:])
    monkeypatch.setattr(cifar, "meta", {"filename": name, "key": "label_names", "md5": checksum})
    return rows.reshape(6, 3, 32, 32)


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


def test_cifar10_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = write_cifar10(tmp_path / "data", monkeypatch)
    source = CIFAR10(str(tmp_path / "data"), tmp_path / "cache")
    source.fetch()
    raw = source.read()
    assert np.array_equal(np.concatenate(list(raw.train.blocks())), expected[:5])
    assert np.array_equal(np.concatenate(list(raw.test.blocks())), expected[5:])
    assert raw.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert (raw.image_shape, len(raw.classes)) == ((3, 32, 32), 10)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [(FashionMNIST, "t10k-images-idx3-ubyte"), (CIFAR10, "test_batch")],
)
def test_download_that_fails_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Source], wanted: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(kind, "_open", fail)
    with pytest.raises(DataError, match=f"could not be downloaded.*{wanted}.*{tmp_path}"):
        kind(str(tmp_path), tmp_path / "cache").fetch()
    with pytest.raises(DataError, match="mistyped': there is no such folder"):
        kind(str(tmp_path / "mistyped"), tmp_path / "cache").fetch()
