from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.valuation.parts import draw_batches, draw_rows


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.data(), st.integers(0, 2**31))
def test_every_class_gives_its_share(labels, data, seed):
    count = data.draw(st.integers(1, len(labels)))
    rows = draw_rows(torch.tensor(labels), count, generator(seed)).tolist()
    assert rows == sorted(set(rows))
    assert len(rows) == count
    for label in set(labels):
        share = count * labels.count(label) / len(labels)
        assert abs(sum(labels[row] == label for row in rows) - share) < 1


@pytest.mark.parametrize(
    "batches",
    [
        [(torch.zeros(4), torch.zeros(4))],  # No more than is asked for.
        [(torch.zeros(9, 2), torch.zeros(8))],
        [object()],
        [torch.tensor(1.0)],
    ],
)
def test_what_cannot_be_divided_is_left_whole(batches):
    assert draw_batches(batches, 4, generator(0)) is None
