"""Updates made far too long, by members who flip them or do not: the model learns beside them."""

from __future__ import annotations

import pytest

from fedif_studies.lengths import Cell, measure


@pytest.mark.all
@pytest.mark.parametrize(
    "cell",
    [
        Cell("flipped", factor=-100.0, share=0.4),
        Cell("honest", factor=10.0, share=0.4),
        Cell("on and off", factor=-10.0, share=0.4, first_round=8),
    ],
    ids=lambda cell: cell.title,
)
def test_the_model_learns_beside_updates_far_too_long(cell):
    rounds = 12
    assert measure(cell, 0, "auto", rounds) > measure(cell, 0, 0.0, rounds) + 10
