"""The cache of prepared data: decoded once, then memory-mapped by every process on the machine.

An entry is a folder ``<name>-<key>/`` with four ``.npy`` files and ``meta.json``. It gets its name
only when it is complete. The operating system keeps one copy of its pages in memory, however many
clients read it. The key depends on the source's identity, so a changed source is prepared anew. The
cache may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedif_flower.errors import DataError
from fedif_flower.storage import (
    cache_errors,
    content_key,
    exclusive_lock,
    remove_leftovers,
    sync_directory,
    temporary_sibling,
    write_atomically,
)

FORMAT = 1  # Version of the entries' layout; part of their keys.
_REMARKS = "remarks.json"  # A file of an entry that does not enter its fingerprint.
Moments = tuple[tuple[float, ...], tuple[float, ...]]  # Means, standard deviations, by channel.
logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Split:
    """The images of one split with their labels.

    Attributes
    ----------
    images : NDArray[np.uint8]
        ``[n, c, h, w]``, memory-mapped and read-only.
    labels : NDArray[np.int64]
        ``[n]``, in [0, classes), memory-mapped and read-only.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return n."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set. Opening it is quick: each process should open it, not get it from another.

    Attributes
    ----------
    name : str
        The data set's name in ``DATASETS``.
    train, test : Split
        The images; ``test`` may be empty in a client's own data.
    classes : tuple of str
        Name of each label.
    max_value : int
        The uint8 value that stands for a pixel of 1.0: 255, or 16 for digits.
    mean, std : tuple of float
        Mean and standard deviation per channel, of the train split's pixels in [0, 1].
    fingerprint : str
        Hex digits that change whenever pixels, labels or another attribute change, except remarks.
    remarks : tuple of str
        In words, which files of the source are not read, and what was lost of others.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    max_value: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str
    remarks: tuple[str, ...] = ()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """``(c, h, w)``."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


@dataclass(frozen=True, eq=False)
class RawSplit:
    """One split before it is prepared.

    Attributes
    ----------
    labels : NDArray[np.int64]
        ``[n]``, in [0, classes).
    blocks : callable
        ``blocks()`` yields the n images in order, in uint8 blocks ``[b, c, h, w]`` of any
        b >= 1. All images never need to be in memory together.
    """

    labels: NDArray[np.int64]
    blocks: Callable[[], Iterable[NDArray[np.uint8]]]


@dataclass(frozen=True, eq=False)
class RawDataset:
    """A data set before it is prepared.

    Attributes
    ----------
    classes : tuple of str
        Name of each label.
    image_shape : tuple of int
        ``(c, h, w)``.
    max_value : int
        The uint8 value that stands for a pixel of 1.0.
    train, test : RawSplit
        The images; ``test`` may have none.
    moments : tuple of two tuples of float, optional
        Means and standard deviations of the channels, of pixels in [0, 1]. Default: computed from
        the train split.
    remarks : callable, optional
        ``remarks()``, called after all blocks are read, returns in words what was lost of images.
    """

    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    max_value: int
    train: RawSplit
    test: RawSplit
    moments: Moments | None = None
    remarks: Callable[[], list[str]] = list


@dataclass(frozen=True)
class Source(ABC):
    """Where a data set comes from: fetches and reads its files.

    Attributes
    ----------
    data_dir : str
        Folder of the user's data; ``""`` if none was given.
    cache_root : Path
        This package's folder in the user's cache.
    """

    data_dir: str
    cache_root: Path

    def fetch(self) -> None:  # noqa: B027 (a source that has everything has nothing to do)
        """Download the source's files if they are missing."""

    def remarks(self) -> list[str]:
        """Return words that say which files of the source are not read; empty if all are."""
        return []

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """Return a description for JSON that is quick to make, and changes when the source does."""

    @abstractmethod
    def read(self) -> RawDataset:
        """Return the data set, to be prepared.

        Raises
        ------
        DataError
            If the source is missing or damaged; also later, while the blocks are read.
        """


def open_prepared(name: str, source: Source, root: Path) -> Dataset:
    """Open a data set's entry; prepare the entry if it is missing or the source has changed.

    If several processes need it at the same time, one prepares it and the others wait.

    Parameters
    ----------
    name : str
        The data set's name.
    source : Source
        Where the data set comes from.
    root : Path
        The folder that holds the entries.

    Raises
    ------
    DataError
        If the source cannot be read, the cache cannot be written, or the entry is damaged.
    """
    entry = root / f"{name}-{content_key([FORMAT, name, source.identity()], digits=16)}"
    if not entry.is_dir():
        with cache_errors(root), exclusive_lock(root / f"{entry.name}.lock"):
            if not entry.is_dir():  # Another process may have prepared it during the wait.
                logger.info("preparing %s in %s, once", name, entry)
                remove_leftovers(entry)
                _prepare(name, source.read(), entry)
    try:
        remarks = [*source.remarks(), *_read_remarks(entry)]
        return replace(_read(entry), remarks=tuple(remarks))
    except Exception as error:
        raise DataError(
            f"{entry} is damaged ({error}); remove that folder to have it prepared again"
        ) from error


def _read(entry: Path) -> Dataset:
    """Open an entry; raise an error if it is damaged, as far as that shows without reading all."""
    meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
    if meta["fingerprint"] != _fingerprint(meta):
        raise ValueError("meta.json has changed")

    arrays = {}
    for name, stored in meta["files"].items():
        path = entry / f"{name}.npy"
        if path.stat().st_size != stored["bytes"]:
            raise ValueError(f"{path.name} is not {stored['bytes']} bytes long")
        arrays[name] = np.load(path, mmap_mode="r")
    return Dataset(
        name=meta["name"],
        train=Split(arrays["train_images"], arrays["train_labels"]),
        test=Split(arrays["test_images"], arrays["test_labels"]),
        classes=tuple(meta["classes"]),
        max_value=meta["max_value"],
        mean=tuple(meta["mean"]),
        std=tuple(meta["std"]),
        fingerprint=meta["fingerprint"],
    )


def _read_remarks(entry: Path) -> list[str]:
    """Return, in words, what was lost of images when an entry was prepared."""
    path = entry / _REMARKS
    if not path.exists():
        return []
    remarks: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return remarks


def _fingerprint(meta: dict[str, Any]) -> str:
    """Return a hash of the metadata, which include checksums of pixels and labels."""
    visible = {key: value for key, value in meta.items() if key != "fingerprint"}
    return content_key(visible)


def _prepare(name: str, raw: RawDataset, entry: Path) -> None:
    """Write an entry under a temporary name, and rename it when it is complete."""
    temporary = temporary_sibling(entry)
    temporary.mkdir()
    try:
        files = {}
        for name_of_split, split in (("train", raw.train), ("test", raw.test)):
            images = temporary / f"{name_of_split}_images.npy"
            labels = temporary / f"{name_of_split}_labels.npy"
            shape = (len(split.labels), *raw.image_shape)
            files[images.stem] = _write_array(images, shape, "|u1", split.blocks())
            files[labels.stem] = _write_array(labels, shape[:1], "<i8", [split.labels])
        pixels = np.load(temporary / "train_images.npy", mmap_mode="r")
        mean, std = raw.moments or channel_moments(pixels, raw.max_value)
        meta = {
            "format": FORMAT,
            "name": name,
            "classes": list(raw.classes),
            "max_value": raw.max_value,
            "mean": list(mean),
            "std": list(std),
            "files": files,
        }
        meta["fingerprint"] = _fingerprint(meta)
        remarks = raw.remarks()
        if remarks:
            write_atomically(temporary / _REMARKS, json.dumps(remarks))
        write_atomically(temporary / "meta.json", json.dumps(meta, indent=1))
        temporary.rename(entry)
        sync_directory(entry.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # If all went well, it was renamed.


def _write_array(
    path: Path, shape: tuple[int, ...], dtype: str, blocks: Iterable[NDArray[Any]]
) -> dict[str, Any]:
    """Write a ``.npy`` file block by block; return its entry in meta.json."""
    # Plain writes, not a writable memory map: on a full disk a map would kill the process by SIGBUS
    # without an error to report.
    rows = 0
    with path.open("x+b") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)
            rows += len(block)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    if rows != shape[0]:
        raise DataError(f"{path.stem}: {rows} images, but {shape[0]} labels")
    return {
        "bytes": path.stat().st_size,
        "shape": list(shape),
        "dtype": str(np.dtype(dtype)),
        "sha256": checksum,
    }


def channel_moments(images: NDArray[np.uint8], max_value: int) -> Moments:
    """Return each channel's mean and standard deviation, of pixels in [0, 1].

    Both come from exact counts of the 256 values, so they do not depend on the order of images.

    Parameters
    ----------
    images : NDArray[np.uint8]
        ``[n, c, h, w]``, n >= 1.
    max_value : int
        The value that stands for a pixel of 1.0.

    Returns
    -------
    tuple of two tuples of float
        ``c`` means and ``c`` standard deviations. A channel with only one value gets a deviation of
        1.0 instead of 0, because pixels are divided by it.
    """
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    step = max(1, 2**22 // math.prod(images.shape[1:]))  # Blocks of 4 MiB bound the memory.
    for start in range(0, len(images), step):
        for channel, values in enumerate(images[start : start + step].swapaxes(0, 1)):
            counts[channel] += np.bincount(values.ravel(), minlength=256)
    pixels = np.arange(256) / max_value  # [256]
    shares = counts / counts.sum(axis=1, keepdims=True)  # [c, 256]
    mean = shares @ pixels  # [c]
    deviation = np.sqrt((shares * (pixels - mean[:, None]) ** 2).sum(axis=1))  # [c]
    constant = (counts > 0).sum(axis=1) == 1
    return tuple(mean.tolist()), tuple(np.where(constant, 1.0, deviation).tolist())
