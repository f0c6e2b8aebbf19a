from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedif_flower.errors import ConfigError
from fedif_studies import games
from fedif_studies.games import GAMES, table
from fedif_studies.rows import Row


def row(seed: str, share: str, honest_share: str) -> dict[str, str]:
    return {
        "game": next(iter(GAMES)),
        "epochs": "1",
        "strategy": "fedif",
        "seed": seed,
        "share": share,
        "honest_share": honest_share,
        "verdicts": "accept",
    }


def test_a_seed_in_which_a_player_has_nothing_without_the_game_is_counted():
    rows = [row("0", "0.3", "0.2"), row("1", "0.25", "0.1"), row("2", "0.4", "0.0")]
    _, cell = table(rows).lines[0]
    # 1.5 and 2.5, and no factor of nothing.
    assert cell == "2.00 (1.50\N{EN DASH}2.50), 3; nothing to compare in 1 of 3 seeds"
    _, cell = table(rows[:2]).lines[0]
    assert cell == "2.00 (1.50\N{EN DASH}2.50), 2"


def test_a_game_with_nothing_to_compare_has_no_figure():
    _, cell = table([row("0", "0.4", "0.0")]).lines[0]
    assert cell == "-"


def test_strategies_are_names_between_commas(monkeypatch):
    planned: list[Row] = []

    def fill(_path: Path, rows: list[Row], *_: Any, **__: Any) -> bool:
        planned.extend(rows)
        return True

    monkeypatch.setattr(games, "fill", fill)
    games.main(seeds=1, epochs="1", strategies="fedavg, fedif")
    assert {cell["strategy"] for cell in planned} == {"fedavg", "fedif"}
    with pytest.raises(ConfigError, match="strategies = 'nobody'; allowed: fedif, fedavg"):
        games.main(seeds=1, epochs="1", strategies="fedavg,nobody")
