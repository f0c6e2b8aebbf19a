from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators import fltrust_coefficients


def test_by_hand() -> None:
    # cosines 0.6, 1 and -1; norms 5, 2, 7; the server's norm is 1.
    updates = torch.tensor([[3.0, 4.0], [2.0, 0.0], [-7.0, 0.0]])
    coefficients, trust = fltrust_coefficients(updates, torch.tensor([1.0, 0.0]))
    expected = torch.tensor([0.6, 1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(trust, expected)
    torch.testing.assert_close(coefficients, expected / 1.6 / torch.tensor([5.0, 2.0, 7.0]))


def test_nobody_trusted_means_no_step() -> None:
    updates = torch.tensor([[-2.0, 0.0], [0.0, 4.0]])
    coefficients, trust = fltrust_coefficients(updates, torch.tensor([3.0, 0.0]))
    assert trust.tolist() == [0.0, 0.0]
    assert coefficients.tolist() == [0.0, 0.0]
    # <x, y> is 0 but for rounding, here 1 - 3 / 3 of numbers that float64 does not have.
    third = torch.tensor([[0.1 + 0.2, -1.0], [0.2 + 0.1, -1.0]], dtype=torch.float64)
    coefficients, _ = fltrust_coefficients(third, torch.tensor([1.0, 0.3], dtype=torch.float64))
    assert coefficients.tolist() == [0.0, 0.0]


def test_a_zero_update_counts_for_nothing_and_a_zero_server_update_moves_nothing() -> None:
    updates = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    coefficients, trust = fltrust_coefficients(updates, torch.tensor([1.0, 0.0]))
    assert trust.tolist() == [0.0, 1.0]
    assert coefficients.tolist() == [0.0, 0.5]
    assert not fltrust_coefficients(updates, torch.zeros(2)).coefficients.any()


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
