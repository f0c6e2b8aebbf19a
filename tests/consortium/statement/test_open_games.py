"""What a run's settings leave open is said."""

from __future__ import annotations

import pytest

from fedif_consortium.statement.pages import open_games

SAFE = {
    "strategy": "fedif",
    "credit.length": 1.25,
    "credit.borrowed": 1.6,
    "credit.weight": 2.0,
    "credit.secret-validation": True,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"credit.length": 0.0}, ["credit.length = 0"]),
        ({"credit.secret-validation": False}, ["credit.secret-validation = false"]),
        ({"strategy": "influence-descent"}, ["influence-descent.relative = false"]),
    ],
)
def test_each_open_game_is_named(change, said):
    assert [words.partition(":")[0] for words in open_games(SAFE | change)] == said
