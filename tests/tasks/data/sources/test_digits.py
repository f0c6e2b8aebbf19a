"""The embedded data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from fedif_flower.tasks.data.sources import Digits


def test_every_scan_is_in_exactly_one_split(tmp_path: Path) -> None:
    raw = Digits("", tmp_path).read()
    (train,), (test,) = raw.train.blocks(), raw.test.blocks()
    assert train.shape == (1197, 1, 8, 8)
    assert test.shape == (600, 1, 8, 8)
    ours = np.column_stack(
        [
            np.concatenate([train, test]).reshape(1797, 64),
            np.concatenate([raw.train.labels, raw.test.labels]),
        ]
    )
    scans, labels = load_digits(return_X_y=True)
    assert sorted(map(tuple, ours)) == sorted(map(tuple, np.column_stack([scans, labels])))


def test_split_is_shuffled_and_always_the_same(tmp_path: Path) -> None:
    first, second = Digits("", tmp_path).read(), Digits("elsewhere", tmp_path).read()
    assert np.array_equal(first.train.labels, second.train.labels)
    assert set(first.train.labels[:50]) == set(range(10))
    assert first.train.labels[:12].tolist() != load_digits().target[:12].tolist()
