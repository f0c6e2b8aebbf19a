from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.masking import encode_vectors
from fedif_consortium.masking.concentration import extended, largest_leverage
from fedif_consortium.masking.ring import BLOCK


def leverage(*vectors) -> float | None:
    basis = np.empty((0, len(vectors[0])))
    for vector in encode_vectors(np.array(vectors, np.float64))[0]:
        numbers = vector.view(np.int64).astype(np.float64)
        wider = extended(basis, numbers, float(np.linalg.norm(numbers)))
        if wider is None:
            return None
        basis = wider
    return largest_leverage(basis)


def test_by_hand():
    assert leverage([3.0, 4.0, 0.0, 0.0]) == pytest.approx(0.64)
    assert leverage([1.0, 1.0, 1.0, 1.0]) == pytest.approx(0.25)
    assert leverage([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]) == pytest.approx(0.5)
    assert leverage([0.0, 1.0, 0.0]) == pytest.approx(1.0)
    assert leverage([0.0, 0.0]) == 0.0


def test_a_place_hidden_in_the_difference_of_two_vectors_is_found():
    cover = np.random.default_rng(0).normal(size=2 * BLOCK)
    place = np.eye(1, 2 * BLOCK, BLOCK + 3)[0]
    assert leverage(cover) < 0.001
    for size in (1.0, 1e-3):
        assert leverage(cover, cover + size * np.linalg.norm(cover) * place) > 0.99
    # So near that its own rounding hides what it adds: refused as such.
    assert leverage(cover, cover + 1e-7 * np.linalg.norm(cover) * place) is None
    assert leverage(cover, 2 * cover) is None


@given(st.integers(1, 4), st.integers(5, 60), st.integers(0, 2**32))
def test_no_combination_has_more_in_one_place(count, length, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, length)) * rng.exponential(size=length)
    bound = leverage(*vectors)
    combinations = rng.normal(size=(50, count)) @ vectors
    shares = combinations**2 / np.sum(combinations**2, axis=1, keepdims=True)
    assert np.max(shares) <= bound + 1e-5
    # The bound is reached: by the projection of the place onto the span.
    projector = np.linalg.pinv(vectors) @ vectors
    assert bound == pytest.approx(np.max(np.diag(projector)), abs=1e-5)
