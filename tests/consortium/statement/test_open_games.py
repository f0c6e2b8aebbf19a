"""What a run's settings leave open is said."""

from __future__ import annotations

from fedif_consortium.statement.open_games import open_games

SAFE = {
    "strategy": "fedif",
    "credit-length": 1.25,
    "credit-borrowed": 1.6,
    "credit-weight": 2.0,
    "secret-validation": True,
}


def test_a_run_with_every_bound_leaves_nothing_open():
    assert open_games(SAFE) == []


def test_each_open_game_is_named():
    for key in ("credit-length", "credit-borrowed", "credit-weight"):
        (found,) = open_games(SAFE | {key: 0.0})
        assert found.startswith(f"{key} = 0: ")
    (found,) = open_games(SAFE | {"secret-validation": False})
    assert found.startswith("secret-validation = false")
    (found,) = open_games(SAFE | {"strategy": "influence-descent"})
    assert found.startswith("influence-descent.relative = false")
    assert (
        open_games(SAFE | {"strategy": "influence-descent", "influence-descent.relative": True})
        == []
    )
