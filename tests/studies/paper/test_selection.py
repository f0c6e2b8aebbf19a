from __future__ import annotations

import pytest

from fedif_studies.paper.cells import (
    Selection,
    select,
)
from fedif_studies.paper.tables import TABLES


def names(table: str, **selection) -> list[tuple[str, str, int]]:
    chosen = select(TABLES[table], Selection(**selection))
    return [(row.key, column.key, seed) for row, column, seed in chosen]


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("clean", 5),
        ("label-noise*", 20),
        ("*_fedif", 9),
        ("clean_fedif_seed0", 1),
        ("adversarial_0.7*krum*", 2),
    ],
)
def test_patterns(pattern, count):
    assert len(names("cifar10", patterns=(pattern,))) == count
