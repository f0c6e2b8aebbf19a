"""The prepared data: decoded once, then memory-mapped by every process on the machine.

An entry is a folder ``<name>-<key>/`` of four ``.npy`` files and ``meta.json``. It appears under
its name only when complete, and the operating system keeps one copy of its pages in memory,
however many clients read it. The key follows the source, so that a changed source is prepared
anew. The cache may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedif_flower.errors import DataError
from fedif_flower.storage import (
    cache_errors,
    content_key,
    exclusive_lock,
    sync_directory,
    temporary_sibling,
    temporary_siblings,
)
from fedif_flower.tasks.data.sources import RawDataset, RawSplit, Source

FORMAT = 1
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
logger = logging.getLogger(__name__)


class _DamagedError(Exception):
    """An entry is not what its meta.json says."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """An open entry.

    Attributes
    ----------
    meta : dict
        What ``meta.json`` says: classes, max_value, mean, std, fingerprint, ...
    arrays : dict
        The memory-mapped, read-only array of each name in ``ARRAYS``.
    """

    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def open_prepared(name: str, source: Source, root: Path, *, verify: bool = False) -> Prepared:
    """Open a data set's entry; prepare it if it is missing, out of date or damaged.

    Of many processes that ask together, one prepares and the others wait.

    Parameters
    ----------
    name : str
        The data set's name.
    source : Source
        Where it comes from.
    root : Path
        Folder of the entries.
    verify : bool
        Also compare every file with its stored checksum, which reads them all.

    Raises
    ------
    DataError
        If the source cannot be read or the cache cannot be written.
    """
    entry = root / f"{name}-{content_key([FORMAT, name, source.identity()], digits=16)}"
    with suppress(OSError, _DamagedError):  # the cause is found and reported below
        return _read(entry, verify=verify)
    with cache_errors(root), exclusive_lock(root / f"{entry.name}.lock"):
        try:
            return _read(entry, verify=verify)  # another process may have been faster
        except FileNotFoundError:
            logger.info("preparing %s in %s, once", name, entry)
        except _DamagedError as error:
            logger.warning("%s is damaged (%s): preparing it again", entry, error)
        for leftover in temporary_siblings(entry):
            logger.warning("removing %s, left behind by a process that was stopped", leftover)
            shutil.rmtree(leftover)
        _prepare(name, source.read(), entry)
        return _read(entry, verify=False)


def _read(entry: Path, *, verify: bool) -> Prepared:
    """Open an entry; FileNotFoundError if there is none, _DamagedError if it is not whole."""
    try:
        meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
        if meta["fingerprint"] != _fingerprint(meta):
            raise _DamagedError("meta.json has changed")
        return Prepared(meta, {name: _open_array(entry, name, meta, verify) for name in ARRAYS})
    except FileNotFoundError as error:
        if not entry.is_dir():
            raise
        raise _DamagedError(f"{Path(error.filename).name} is missing") from error
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise _DamagedError(f"{type(error).__name__}: {error}") from error


def _open_array(entry: Path, name: str, meta: dict[str, Any], verify: bool) -> NDArray[Any]:
    path, stored = entry / f"{name}.npy", meta["files"][name]
    if path.stat().st_size != stored["bytes"]:
        raise _DamagedError(f"{path.name} is not {stored['bytes']} bytes long")
    if verify and _checksum(path) != stored["sha256"]:
        raise _DamagedError(f"{path.name} does not match its checksum")
    array: NDArray[Any] = np.load(path, mmap_mode="r")
    if list(array.shape) != stored["shape"] or str(array.dtype) != stored["dtype"]:
        raise _DamagedError(f"{path.name} has shape {array.shape} and dtype {array.dtype}")
    return array


def _fingerprint(meta: dict[str, Any]) -> str:
    """Return a hash of all that a run can see of a data set, checksums of the pixels included."""
    return content_key({key: value for key, value in meta.items() if key != "fingerprint"})


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _prepare(name: str, raw: RawDataset, entry: Path) -> None:
    """Write an entry beside its place and rename it there when it is complete."""
    temporary = temporary_sibling(entry)
    temporary.mkdir()
    try:
        files = {}
        for split_name, split in (("train", raw.train), ("test", raw.test)):
            _check_labels(name, split, len(raw.classes))
            shape = (len(split.labels), *raw.image_shape)
            images, labels = f"{split_name}_images", f"{split_name}_labels"
            files[images] = _write_array(temporary / f"{images}.npy", shape, "|u1", split.blocks())
            files[labels] = _write_array(
                temporary / f"{labels}.npy", shape[:1], "<i8", [split.labels]
            )
        mean, std = raw.mean, raw.std
        if mean is None or std is None:
            train_images = np.load(temporary / "train_images.npy", mmap_mode="r")
            mean, std = channel_moments(train_images, raw.max_value)
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
        with (temporary / "meta.json").open("x", encoding="utf-8") as file:
            json.dump(meta, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(temporary)
        if entry.exists():  # a damaged one; processes that have it open keep its pages
            aside = entry.rename(temporary_sibling(entry))
            temporary.rename(entry)
            shutil.rmtree(aside)
        else:
            temporary.rename(entry)
        sync_directory(entry.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already if all went well


def _check_labels(name: str, split: RawSplit, num_classes: int) -> None:
    labels = split.labels
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise DataError(f"{name} has labels outside 0..{num_classes - 1}")


def _write_array(
    path: Path, shape: tuple[int, ...], dtype: str, blocks: Iterable[NDArray[Any]]
) -> dict[str, Any]:
    """Write a ``.npy`` file block by block and return what meta.json tells about it."""
    # Plain writes, not a writable memory map: on a full disk that would die of SIGBUS, without
    # an error to report.
    rows = 0
    with path.open("xb") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            if block.dtype != np.dtype(dtype) or block.shape[1:] != shape[1:]:
                raise DataError(f"{path.stem}: expected {dtype} {shape}, got {block.shape[1:]}")
            file.write(np.ascontiguousarray(block).data)
            rows += len(block)
        file.flush()
        os.fsync(file.fileno())
    if rows != shape[0]:
        raise DataError(f"{path.stem}: {rows} images, but {shape[0]} labels")
    return {
        "bytes": path.stat().st_size,
        "shape": list(shape),
        "dtype": str(np.dtype(dtype)),
        "sha256": _checksum(path),
    }


def channel_moments(
    images: NDArray[np.uint8], max_value: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, of pixels in [0, 1].

    They come from exact counts of the 256 values, so they do not depend on the order of images.

    Parameters
    ----------
    images : NDArray[np.uint8]
        ``[n, c, h, w]``, n >= 1.
    max_value : int
        The value that stands for pixel 1.0.

    Returns
    -------
    tuple of two tuples of float
        ``c`` means and ``c`` deviations; 1.0 for a channel of one value only, which can then
        still be divided by it.
    """
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    step = max(1, 2**22 // math.prod(images.shape[1:]))  # bounded memory: blocks of 4 MiB
    for start in range(0, len(images), step):
        for channel, values in enumerate(images[start : start + step].swapaxes(0, 1)):
            counts[channel] += np.bincount(values.ravel(), minlength=256)
    pixels = np.arange(256) / max_value  # [256]
    shares = counts / counts.sum(axis=1, keepdims=True)  # [c, 256]
    mean = shares @ pixels  # [c]
    deviation = np.sqrt((shares * (pixels - mean[:, None]) ** 2).sum(axis=1))  # [c]
    constant = (counts > 0).sum(axis=1) == 1
    return tuple(mean.tolist()), tuple(np.where(constant, 1.0, deviation).tolist())
