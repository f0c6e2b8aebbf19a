from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.valuation.shapfed import class_contributions, shapfed_contributions

# Two clients, two classes, two features; p = (1/2, 1/2) makes the aggregate ((1, 1), (0, 1)).
UPDATES = torch.tensor([[[2.0, 0.0], [0.0, 3.0]], [[0.0, 2.0], [0.0, -1.0]]])


def test_by_hand() -> None:
    half = 0.5**0.5
    expected = torch.tensor([[half, 1.0], [half, -1.0]], dtype=torch.float64)
    weights = torch.tensor([0.5, 0.5])
    torch.testing.assert_close(class_contributions(UPDATES, weights), expected)
    torch.testing.assert_close(shapfed_contributions(UPDATES, weights), expected.mean(dim=1))


def test_rows_without_an_update_count_as_zero() -> None:
    updates = UPDATES.clone()
    updates[0, 0] = 0.0  # client 0 did not touch class 0
    updates[:, 1] = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])  # class 1 cancels out
    contributions = class_contributions(updates, torch.tensor([0.5, 0.5]))
    assert contributions.tolist() == [[0.0, 0.0], [1.0, 0.0]]


@given(st.data())
def test_properties(data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 4))
    numbers = st.lists(st.integers(-9, 9), min_size=6 * m, max_size=6 * m)
    updates = torch.tensor(data.draw(numbers)).view(m, 2, 3).float()
    weights = torch.tensor(data.draw(st.lists(st.integers(0, 9), min_size=m, max_size=m)))
    order = data.draw(st.permutations(range(m)))
    contributions = class_contributions(updates, weights)
    assert (contributions.abs() <= 1.0).all()
    moved = class_contributions(updates[order], weights[order])
    torch.testing.assert_close(moved, contributions[order])
    # Neither the scale of all updates nor that of the weights matters.
    torch.testing.assert_close(class_contributions(4.0 * updates, 8 * weights), contributions)
