"""Who gets which examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.data.cache import Dataset
from fedif_flower.tasks.data.datasets import load_dataset
from fedif_flower.tasks.data.partition import dirichlet_partition, split_test


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedif-flower"


@pytest.mark.parametrize("num_partitions", [1, 7, 100])
@pytest.mark.parametrize("alpha", [0.5, 1, 1000.0])
def test_partitions_are_disjoint_complete_and_not_tiny(digits, num_partitions, alpha) -> None:
    partitions = dirichlet_partition(digits, num_partitions, alpha, 0)
    assert len(partitions) == num_partitions
    assert sorted(np.concatenate(partitions)) == list(range(1197))
    assert min(map(len, partitions)) >= min(10, 1197 // num_partitions // 4)
    assert all(partition.dtype == np.int64 for partition in partitions)


def test_partitions_depend_on_each_argument_and_on_no_cache(digits, tmp_path, monkeypatch) -> None:
    def drawn(*arguments: float) -> list[list[int]]:
        return [partition.tolist() for partition in dirichlet_partition(digits, *arguments)]

    base = drawn(10, 1.0, 0)
    for other in ((10, 1.0, 1), (10, 0.9, 0), (11, 1.0, 0)):
        assert drawn(*other) != base
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert drawn(10, 1.0, 0) == base


def test_damaged_partitions_are_named(digits: Dataset, cache: Path) -> None:
    dirichlet_partition(digits, 2, 1.0, 0)
    (path,) = cache.glob("partitions-*.npz")
    content = bytearray(path.read_bytes())
    content[400] ^= 1  # within the indices
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} is damaged .*; remove it"):
        dirichlet_partition(digits, 2, 1.0, 0)


@pytest.mark.parametrize(
    ("num", "alpha", "message"),
    [
        (0, 1.0, "num_partitions = 0; allowed: 1 to 1197"),
        (1198, 1.0, "num_partitions = 1198; allowed: 1 to 1197"),
        (100, 1e-3, r"dirichlet_alpha = 0\.001: .*num_partitions = 100"),
        (100, 1e-320, "dirichlet_alpha = 1e-320: .*num_partitions = 100"),
    ],
)
def test_what_cannot_be_divided_is_refused(digits, cache, num, alpha, message, recwarn) -> None:
    with pytest.raises(ConfigError, match=message):
        dirichlet_partition(digits, num, alpha, 0)
    assert not list(cache.glob("partitions-*.npz"))
    assert not recwarn.list


@given(st.integers(2, 500), st.integers(0, 2**32), st.floats(0.01, 0.99))
def test_split_is_disjoint_complete_and_never_empty(num: int, seed: int, fraction: float) -> None:
    validation, test = split_test(num, seed, fraction)
    assert sorted([*validation, *test]) == list(range(num))
    assert len(validation) == min(max(round(fraction * num), 1), num - 1)
    assert (np.diff(validation) > 0).all()
    assert (np.diff(test) > 0).all()


def test_split_of_the_paper_and_its_seeds() -> None:
    validation, test = split_test(10_000, 0)
    assert (len(validation), len(test)) == (2_000, 8_000)
    assert validation.dtype == np.int64
    assert np.array_equal(validation, split_test(10_000, 0)[0])
    assert not np.array_equal(validation, split_test(10_000, 1)[0])
    # At random over the whole split: its mean index has a deviation of 58 around 5,000.
    assert abs(validation.mean() - 5_000) < 300
    with pytest.raises(DataError, match=r"1 image.*2 or more"):
        split_test(1, 0)
