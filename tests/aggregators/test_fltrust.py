from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators import fltrust_coefficients


@pytest.mark.parametrize(
    ("updates", "server", "trust", "lengths"),
    [
        # Cosines 0.6, 1 and -1; norms 5, 2, 7; the server's norm is 1.
        ([[3.0, 4.0], [2.0, 0.0], [-7.0, 0.0]], [1.0, 0.0], [0.6, 1, 0], [1 / 5, 1 / 2, 1 / 7]),
        ([[-2.0, 0.0], [0.0, 4.0]], [3.0, 0.0], [0, 0], [1, 1]),
        ([[0.0, 0.0], [2.0, 0.0]], [1.0, 0.0], [0, 1], [1, 1 / 2]),
        ([[2.0, 0.0]], [0.0, 0.0], [0], [1]),
        # <x, y> is 0 but for rounding, here 1 - 3 / 3 of numbers that float64 does not have.
        ([[0.1 + 0.2, -1.0], [0.2 + 0.1, -1.0]], [1.0, 0.3], [0, 0], [1, 1]),
    ],
)
def test_by_hand(updates, server, trust, lengths):
    given_updates, own = (torch.tensor(values, dtype=torch.float64) for values in (updates, server))
    found = fltrust_coefficients(given_updates, own)
    assert found.trust.tolist() == pytest.approx(trust)
    expected = torch.tensor(trust) / max(sum(trust), 1e-9) * torch.tensor(lengths)
    assert found.coefficients.tolist() == pytest.approx(expected.tolist())


@given(st.data())
def test_properties(data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 5))
    row = st.lists(st.integers(-9, 9), min_size=3, max_size=3)
    updates = torch.tensor(data.draw(st.lists(row, min_size=m, max_size=m))).float()
    server = torch.tensor(data.draw(row)).float()
    coefficients, trust = fltrust_coefficients(updates, server)
    assert ((trust >= 0) & (trust <= 1)).all()
    # A weighted mean of vectors of the server's length is no longer than that.
    assert float((coefficients @ updates.double()).norm()) <= float(server.norm()) * (1 + 1e-6)
    order = data.draw(st.permutations(range(m)))
    moved = fltrust_coefficients(updates[order], server)
    torch.testing.assert_close(moved.coefficients, coefficients[order])
    # The length that a client gives its update is without effect.
    scaled = fltrust_coefficients(4.0 * updates, server)
    torch.testing.assert_close(scaled.coefficients * 4.0, coefficients)
