"""The prepared cache: whole or rebuilt, whatever happens to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedif_flower.errors import DataError
from fedif_flower.tasks.data.cache import ARRAYS, channel_moments, open_prepared
from fedif_flower.tasks.data.sources import RawDataset, RawSplit, Source

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
    (entry,) = entries(source.cache_root)
    return entry


def entries(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()]


def assert_whole(source: Tiny, *, verify: bool = False) -> None:
    prepared = open_prepared("tiny", source, source.cache_root, verify=verify)
    assert np.array_equal(prepared.arrays["train_images"], IMAGES)
    assert np.array_equal(prepared.arrays["train_labels"], LABELS)
    assert prepared.arrays["test_images"].shape == (0, 2, 1, 2)
    assert len(entries(source.cache_root)) == 1


def test_entry_is_memory_mapped_read_only_and_described(source: Tiny, entry: Path) -> None:
    assert_whole(source, verify=True)
    prepared = open_prepared("tiny", source, source.cache_root)
    assert all(isinstance(prepared.arrays[name], np.memmap) for name in ARRAYS)
    with pytest.raises(ValueError, match="read-only"):
        prepared.arrays["train_images"][0] = 1
    assert prepared.meta["classes"] == ["a", "b"]
    assert sorted(path.name for path in entry.iterdir()) == sorted(
        [*(f"{name}.npy" for name in ARRAYS), "meta.json"]
    )


def test_second_opening_does_not_read_the_source(
    source: Tiny, entry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = {path: path.stat().st_mtime_ns for path in entry.iterdir()}
    with caplog.at_level(logging.INFO, "fedif_flower"):
        assert_whole(source)
    assert before == {path: path.stat().st_mtime_ns for path in entry.iterdir()}
    assert not caplog.records


def test_changed_source_gets_its_own_entry(source: Tiny, entry: Path) -> None:
    changed = Tiny("", source.cache_root, version=1, labels=(1, 1, 0))
    other = open_prepared("tiny", changed, source.cache_root)
    assert other.arrays["train_labels"].tolist() == [1, 1, 0]
    same = open_prepared("tiny", source, source.cache_root)
    assert same.meta["fingerprint"] != other.meta["fingerprint"]


def _truncate(entry: Path) -> None:
    os.truncate(entry / "train_images.npy", 130)


def _empty(entry: Path) -> None:
    os.truncate(entry / "train_labels.npy", 0)


def _lengthen(entry: Path) -> None:
    with (entry / "train_images.npy").open("ab") as file:
        file.write(b"x")


def _remove(entry: Path) -> None:
    (entry / "test_labels.npy").unlink()


def _remove_meta(entry: Path) -> None:
    (entry / "meta.json").unlink()


def _cut_meta(entry: Path) -> None:
    os.truncate(entry / "meta.json", 40)


def _edit_meta(entry: Path) -> None:
    path = entry / "meta.json"
    path.write_text(path.read_text().replace('"max_value": 255', '"max_value": 254'))


def _strange_meta(entry: Path) -> None:
    (entry / "meta.json").write_text("[]")


def _spoil_header(entry: Path) -> None:
    path = entry / "train_images.npy"
    path.write_bytes(b"\0" * 8 + path.read_bytes()[8:])


def _other_shape(entry: Path) -> None:
    path = entry / "train_images.npy"
    path.write_bytes(path.read_bytes().replace(b"(3, 2, 1, 2)", b"(3, 1, 2, 2)"))


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _lengthen,
        _empty,
        _remove,
        _remove_meta,
        _cut_meta,
        _edit_meta,
        _strange_meta,
        _spoil_header,
        _other_shape,
    ],
)
def test_damaged_entry_is_noticed_told_and_rebuilt(
    damage, source: Tiny, entry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(entry)
    with caplog.at_level(logging.WARNING, "fedif_flower"):
        assert_whole(source)
    assert f"{entry} is damaged" in caplog.text
    caplog.clear()
    assert_whole(source, verify=True)
    assert not caplog.records


def test_flipped_byte_is_found_by_verify_only(
    source: Tiny, entry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = entry / "train_images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    unverified = open_prepared("tiny", source, source.cache_root)
    assert not np.array_equal(unverified.arrays["train_images"], IMAGES)
    assert not caplog.records
    assert_whole(source, verify=True)
    assert "train_images.npy does not match its checksum" in caplog.text


def test_valid_entry_opens_in_a_cache_that_cannot_be_locked(source: Tiny, entry: Path) -> None:
    lock = entry.with_name(f"{entry.name}.lock")
    lock.unlink()
    lock.symlink_to(entry / "nowhere" / "lock")  # even root cannot write this
    assert_whole(source)
    _truncate(entry)
    with pytest.raises(DataError, match=str(source.cache_root)):
        assert_whole(source)


def test_unusable_cache_folder_is_named(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    with pytest.raises(DataError, match=str(occupied)):
        open_prepared("tiny", Tiny("", occupied), occupied)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"labels": (0, 1, 2)}, "outside 0..1"),
        ({"labels": (0, 1, -1)}, "outside 0..1"),
        ({"num_images": 2}, "2 images, but 3 labels"),
    ],
)
def test_inconsistent_source_leaves_nothing_behind(
    tmp_path: Path, wrong: dict[str, object], message: str
) -> None:
    source = Tiny("", tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        open_prepared("tiny", source, tmp_path)
    assert not entries(tmp_path)


def test_channel_moments_by_hand() -> None:
    # Channel 0: four times 0, twice 1 -> mean 1/3, variance 2/9. Channel 1: half 1, half 0.
    mean, std = channel_moments(IMAGES, 255)
    assert mean == pytest.approx((1 / 3, 1 / 2))
    assert std == pytest.approx(((2 / 9) ** 0.5, 1 / 2))


def test_channel_moments_of_many_blocks_are_those_of_the_whole() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 1500, 1500), dtype=np.uint8)
    mean, std = channel_moments(images, 255)
    pixels = images / 255
    assert mean == pytest.approx(tuple(pixels.mean(axis=(0, 2, 3))))
    assert std == pytest.approx(tuple(pixels.std(axis=(0, 2, 3))))
