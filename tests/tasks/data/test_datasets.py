"""Data sets by name, from the first preparation to what a run sees, and who gets which examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import fedif_flower
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.data.cache import Dataset, channel_moments
from fedif_flower.tasks.data.datasets import DATASETS, NORMALIZATIONS, load_dataset, to_pixels
from fedif_flower.tasks.data.partition import dirichlet_partition, split_test


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def test_every_scan_of_digits_is_in_exactly_one_split(digits: Dataset) -> None:
    assert digits.train.images.shape == (1197, 1, 8, 8)
    assert digits.test.images.shape == (600, 1, 8, 8)
    assert digits.image_shape == (1, 8, 8)
    assert digits.max_value == 16
    splits = digits.train, digits.test
    ours = [np.column_stack([split.images.reshape(-1, 64), split.labels]) for split in splits]
    theirs = np.column_stack(load_digits(return_X_y=True))
    assert sorted(np.concatenate(ours).tolist()) == sorted(theirs.tolist())
    assert set(digits.train.labels[:50]) == set(range(10))  # It is shuffled.
    pixels = digits.train.images / 16
    assert digits.mean == pytest.approx((pixels.mean(),))
    assert digits.std == pytest.approx((pixels.std(),))


def test_the_fingerprint_is_the_same_in_every_cache(digits, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_dataset("digits").fingerprint == digits.fingerprint
    assert list(tmp_path.glob("fedif-flower/digits-*/meta.json"))


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="dataset = 'mnist'; allowed: digits, ") as caught:
        load_dataset("mnist")
    assert all(name in str(caught.value) for name in DATASETS)


def test_bytes_become_pixels_and_are_normalised_by_channel(digits: Dataset) -> None:
    pixels = to_pixels(digits.train.images, digits.max_value)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels * 16, torch.tensor(np.array(digits.train.images)).float())
    two = torch.tensor([[[[1.0]], [[0.5]]]], requires_grad=True)  # [1, 2, 1, 1]
    result = NORMALIZATIONS["data"]((0.5, 0.25), (0.25, 0.5))(two)
    assert result.flatten().tolist() == [2.0, 0.5]
    result.sum().backward()
    assert two.grad.flatten().tolist() == [4.0, 2.0]
    ends = torch.tensor([0.0, 1.0]).expand(3, 1, 2)
    assert torch.equal(NORMALIZATIONS["unit-range"]((0.2,) * 3, (0.1,) * 3)(ends), 2 * ends - 1)
    as_mnist = NORMALIZATIONS["mnist"]((0.286,), (0.353,))(ends[:1])  # [1, 1, 2]
    assert as_mnist.flatten().tolist() == pytest.approx([-0.1307 / 0.3081, 0.8693 / 0.3081])


def test_channel_moments_of_many_blocks_are_those_of_the_whole() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 1200, 1200), dtype=np.uint8)
    mean, std = channel_moments(images, 255)
    pixels = images / 255
    assert mean == pytest.approx(tuple(pixels.mean(axis=(0, 2, 3))))
    assert std == pytest.approx(tuple(pixels.std(axis=(0, 2, 3))))


# -- who gets which examples


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedif-flower"


@pytest.mark.parametrize("num_partitions", [1, 7, 100])
@pytest.mark.parametrize("alpha", [0.5, 1, 1000.0])
def test_partitions_are_disjoint_complete_and_not_tiny(digits, num_partitions, alpha) -> None:
    partitions = dirichlet_partition(digits.train.labels, num_partitions, alpha, 0)
    assert len(partitions) == num_partitions
    assert sorted(np.concatenate(partitions)) == list(range(1197))
    assert min(map(len, partitions)) >= min(10, 1197 // num_partitions // 4)
    assert all(partition.dtype == np.int64 for partition in partitions)


def test_partitions_depend_on_each_argument_and_on_no_cache(digits, tmp_path, monkeypatch) -> None:
    def drawn(*arguments: float) -> list[list[int]]:
        return [
            partition.tolist() for partition in dirichlet_partition(digits.train.labels, *arguments)
        ]

    base = drawn(10, 1.0, 0)
    for other in ((10, 1.0, 1), (10, 0.9, 0), (11, 1.0, 0)):
        assert drawn(*other) != base
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert drawn(10, 1.0, 0) == base


def test_labels_of_ones_own_are_divided_whatever_holds_them(digits, cache) -> None:
    labels = torch.tensor([0, 1] * 100)
    parts = fedif_flower.dirichlet_partition(labels, 4, dirichlet_alpha=1e6)
    # So large an alpha gives everybody the same: 25 of each class, but for one at either cut.
    for part in parts:
        counts = labels[part].bincount(minlength=2)
        assert counts.tolist() == pytest.approx([25, 25], abs=1)
    assert sorted(np.concatenate(parts)) == list(range(200))
    for same in (labels.to(torch.int32), labels.numpy(), labels.tolist()):
        again = fedif_flower.dirichlet_partition(same, 4, dirichlet_alpha=1e6)
        assert [part.tolist() for part in again] == [part.tolist() for part in parts]
    others = fedif_flower.dirichlet_partition(1 - labels, 4, dirichlet_alpha=1e6)
    assert [part.tolist() for part in others] != [part.tolist() for part in parts]


@pytest.mark.parametrize("labels", [[0.5, 1.0], [[0, 1]], ["cat", "dog"], torch.eye(2)])
def test_what_is_no_label_of_each_example_is_refused(labels) -> None:
    with pytest.raises(ConfigError, match=r"labels of shape .* allowed: integers, one for each"):
        fedif_flower.dirichlet_partition(labels, 2)


def test_damaged_partitions_are_named(digits: Dataset, cache: Path) -> None:
    dirichlet_partition(digits.train.labels, 2, 1.0, 0)
    (path,) = cache.glob("partitions-*.npz")
    content = bytearray(path.read_bytes())
    content[400] ^= 1  # within the indices
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} is damaged .*; remove it"):
        dirichlet_partition(digits.train.labels, 2, 1.0, 0)


@pytest.mark.parametrize(
    ("num", "alpha", "message"),
    [
        (0, 1.0, "num_partitions = 0; allowed: 1 to 1197"),
        (1198, 1.0, "num_partitions = 1198; allowed: 1 to 1197"),
        (2.5, 1.0, "num_partitions = 2.5; allowed: 1 to 1197"),
        ("ten", 1.0, "num_partitions = 'ten'; allowed: 1 to 1197"),
        (3, "one", "dirichlet_alpha = 'one'; allowed: a finite number > 0"),
        (3, -0.5, "dirichlet_alpha = -0.5; allowed: a finite number > 0"),
        (3, float("nan"), "dirichlet_alpha = nan; allowed: a finite number > 0"),
        (100, 1e-3, r"dirichlet-alpha = 0\.001: .* 100 clients"),
        (100, 1e-320, "dirichlet-alpha = 1e-320: .* 100 clients"),
    ],
)
def test_what_cannot_be_divided_is_refused(digits, cache, num, alpha, message, recwarn) -> None:
    with pytest.raises(ConfigError, match=message):
        dirichlet_partition(digits.train.labels, num, alpha, 0)
    assert not list(cache.glob("partitions-*.npz"))
    assert not recwarn.list


@pytest.mark.parametrize(
    ("alpha", "allowed"),
    [
        (0.001, "allowed: a larger dirichlet-alpha, or fewer clients$"),
        (1e3, "allowed: fewer clients$"),
    ],
)
def test_what_would_help_is_said_where_a_client_has_no_example(cache, alpha, allowed) -> None:
    labels = np.random.default_rng(0).integers(0, 3, 50)
    with pytest.raises(
        ConfigError,
        match=f"division of 50 examples among 50 clients in which each client .* {allowed}",
    ):
        dirichlet_partition(labels, 50, alpha, 0)


@given(st.integers(2, 500), st.integers(0, 2**32))
def test_split_is_disjoint_complete_and_never_empty(num: int, seed: int) -> None:
    validation, test = split_test(num, seed)
    assert sorted([*validation, *test]) == list(range(num))
    assert len(validation) == min(max(round(0.2 * num), 1), num - 1)
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
