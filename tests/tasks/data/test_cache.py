"""The prepared cache: whole or rebuilt, whatever happens to it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from numpy.typing import NDArray

from fedif_flower.errors import DataError
from fedif_flower.storage import temporary_sibling
from fedif_flower.tasks.data.cache import RawDataset, RawSplit, Source, open_prepared

# [3, 2, 1, 2]: three images of two channels.
IMAGES = np.array(
    [[[[0, 0]], [[255, 0]]], [[[0, 0]], [[255, 0]]], [[[255, 255]], [[255, 0]]]], dtype=np.uint8
)
LABELS = np.array([0, 1, 1])


@dataclass(frozen=True)
class Tiny(Source):
    version: int = 0
    labels: tuple[int, ...] = (0, 1, 1)
    num_images: int = 3

    def identity(self) -> dict[str, object]:
        return {"version": self.version}

    def read(self) -> RawDataset:
        def blocks() -> Iterator[NDArray[np.uint8]]:
            (self.cache_root / f"read-{uuid4()}").touch()
            for image in IMAGES[: self.num_images]:
                yield image[None]

        train = RawSplit(np.array(self.labels), blocks)
        empty = RawSplit(np.array([], dtype=np.int64), lambda: [])
        return RawDataset(("a", "b"), (2, 1, 2), 255, train, empty)


@pytest.fixture
def source(tmp_path: Path) -> Tiny:
    return Tiny("", tmp_path)


@pytest.fixture
def entry(source: Tiny) -> Path:
    open_prepared("tiny", source, source.cache_root)
    return entries(source)[0]


def entries(source: Tiny) -> list[Path]:
    return [path for path in source.cache_root.iterdir() if path.is_dir()]


def test_entry_is_memory_mapped_read_only_and_read_once(source: Tiny, entry: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in entry.iterdir()}
    dataset = open_prepared("tiny", source, source.cache_root)
    assert np.array_equal(dataset.train.images, IMAGES)
    assert np.array_equal(dataset.train.labels, LABELS)
    assert dataset.test.images.shape == (0, 2, 1, 2)
    assert dataset.classes == ("a", "b")
    for array in (dataset.train.images, dataset.test.labels):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
    assert before == {path: path.stat().st_mtime_ns for path in entry.iterdir()}
    # A source that has changed gets an entry of its own.
    changed = replace(source, version=1, labels=(1, 1, 0))
    other = open_prepared("tiny", changed, source.cache_root)
    assert other.train.labels.tolist() == [1, 1, 0]
    assert dataset.fingerprint != other.fingerprint


def edit_meta(entry: Path) -> None:
    path = entry / "meta.json"
    path.write_text(path.read_text().replace('"max_value": 255', '"max_value": 254'))


DAMAGES = [
    lambda entry: os.truncate(entry / "train_images.npy", 130),
    lambda entry: (entry / "test_labels.npy").unlink(),
    edit_meta,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_named(damage, source: Tiny, entry: Path) -> None:
    damage(entry)
    with pytest.raises(DataError, match=f"{entry} is damaged .*; remove that folder"):
        open_prepared("tiny", source, source.cache_root)


def test_valid_entry_opens_in_a_cache_that_cannot_be_locked(source: Tiny, entry: Path) -> None:
    lock = entry.with_name(f"{entry.name}.lock")
    lock.unlink()
    lock.symlink_to(entry / "nowhere" / "lock")  # even root cannot write this
    assert len(open_prepared("tiny", source, source.cache_root).train) == 3
    occupied = entry / "meta.json"  # No folder.
    with pytest.raises(DataError, match=str(occupied)):
        open_prepared("tiny", source, occupied)


def test_many_that_ask_together_prepare_once(source: Tiny) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: open_prepared("tiny", source, source.cache_root), range(4))
    assert [int(dataset.train.images.sum()) for dataset in found] == [int(IMAGES.sum())] * 4
    assert len(list(source.cache_root.glob("read-*"))) == 1


def test_what_a_killed_process_left_is_removed(source: Tiny, entry: Path) -> None:
    torn = temporary_sibling(entry)
    entry.rename(torn)
    assert len(open_prepared("tiny", source, source.cache_root).train) == 3
    assert entries(source) == [entry]


def test_a_full_disk_and_an_inconsistent_source_leave_nothing_behind(source: Tiny) -> None:
    # A limit on the size of files stands in for a full disk: writes fail in the same way.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(DataError, match=r"cannot use the data cache in .*"):
            open_prepared("tiny", source, source.cache_root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(DataError, match="2 images, but 3 labels"):
        open_prepared("tiny", replace(source, num_images=2), source.cache_root)
    assert not entries(source)
