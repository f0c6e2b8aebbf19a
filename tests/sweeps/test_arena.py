from __future__ import annotations

import pytest

from fedif_flower.attacks import ATTACKS as REGISTERED_ATTACKS
from fedif_flower.run.config import default_run_config
from fedif_flower.strategies.registry import STRATEGIES as REGISTERED_STRATEGIES
from fedif_flower.sweeps import arena
from fedif_flower.sweeps.arena import (
    ATTACKS,
    SHARES,
    STRATEGIES,
    Bout,
    Figures,
    arena_cells,
    bouts,
    measured,
    weight_auc,
)
from fedif_flower.sweeps.arena_page import about, details, headline, write_page


def figures(accuracy: float, success: float | None = None, weight: float | None = None) -> Figures:
    return Figures(accuracy, success, weight, None, 0.002)


FOUND = {
    Bout("A", "none", 0.0): figures(0.9),
    Bout("B", "none", 0.0): figures(0.8),
    Bout("A", "flip", 0.2): figures(0.5, weight=0.1),
    Bout("B", "flip", 0.2): figures(0.7),
    Bout("A", "trigger", 0.2): figures(0.85, success=1.0, weight=0.3),
    Bout("B", "trigger", 0.2): figures(0.6, success=0.25),
    Bout("A", "flip", 0.4): figures(0.1, weight=0.4),
}


def test_every_strategy_meets_every_attack_at_every_share():
    wanted = bouts()
    assert len(set(wanted)) == len(wanted)
    assert len(wanted) == len(STRATEGIES) * (1 + len(ATTACKS) * len(SHARES))
    assert {s["strategy"] for s in STRATEGIES.values()} <= set(REGISTERED_STRATEGIES)
    assert {a["attack"] for a in ATTACKS.values()} <= set(REGISTERED_ATTACKS)


def test_a_cells_settings_are_those_of_its_bout(tmp_path):
    wanted = bouts(["NNM + RFA"], ["ALIE"], [0.4])
    cells = arena_cells(wanted, 2, default_run_config(), tmp_path)
    assert [(bout.attack, seed) for bout, seed in cells] == [
        ("none", 0),
        ("ALIE", 0),
        ("none", 1),
        ("ALIE", 1),
    ]
    config = cells[Bout("NNM + RFA", "ALIE", 0.4), 1].config
    assert (config.strategy, config.attack, config.seed) == ("rfa", "alie", 1)
    assert config.neighbour_mixing
    assert config.malicious_fraction == 0.4
    # Told beforehand, whatever the true share is.
    assert cells[Bout("NNM + RFA", "none", 0.0), 0].config.assumed_malicious_fraction == 0.4


def test_weights_find_malicious_clients_by_their_mean():
    def row(client: str, weight: str, malicious: str) -> dict[str, str]:
        return {"client_id": client, "weight": weight, "malicious": malicious}

    rows = [
        row("1", "0.9", "0"),
        row("2", "0.1", "1"),
        row("2", "0.7", "1"),  # mean 0.4
        row("3", "0.3", "0"),
        row("4", "", "1"),  # refused
    ]
    assert weight_auc(rows) == 0.5
    assert weight_auc(rows[:3]) == 1
    assert weight_auc(rows[:1]) is None
    assert weight_auc([row("1", "nan", "0"), row("2", "nan", "1")]) is None


def test_the_headline_is_the_worst_case():
    table = headline(FOUND)
    assert table.heading == [
        "strategy",
        "no attack",
        *("worst at 20%, by", "worst at 40%, by", "backdoor at 20%", "backdoor at 40%"),
    ]
    assert table.lines == [
        ["A", "90.0", "50.0, flip", "10.0, flip", "100.0", "-"],
        ["B", "80.0", "60.0, trigger", "-", "25.0", "-"],
    ]


def test_a_table_has_the_attacks_for_which_a_figure_is_defined():
    table = details(FOUND, "Weight", "malicious_weight", lambda v: "-" if v is None else f"{v}")
    assert table.heading == ["strategy", "flip, 20%", "trigger, 20%", "flip, 40%"]
    assert table.lines == [["A", "0.1", "0.3", "0.4"]]


def test_the_page_has_its_picture_and_its_command(tmp_path):
    page = tmp_path / "pages" / "arena.md"
    write_page(FOUND, page, about(1, "fedif arena --seeds 1"))
    text = page.read_text()
    assert "![accuracy under attack](arena.png)" in text
    assert (page.parent / "arena.png").read_bytes().startswith(b"\x89PNG")
    assert "| A | 90.0 | 50.0, flip | 10.0, flip | 100.0 | - |" in text
    assert "`fedif arena --seeds 1`" in text


def test_a_bout_counts_once_all_of_its_seeds_are_there(tmp_path, monkeypatch):
    wanted = bouts(["FedAvg"], ["sign flip"], [0.2])
    cells = arena_cells(wanted, 2, default_run_config(), tmp_path)
    assert measured(cells) == {}
    done = {cell.name for (bout, seed), cell in cells.items() if seed == 0 or bout.share == 0}
    monkeypatch.setattr(arena, "find_result", lambda c: tmp_path if c.name in done else None)
    monkeypatch.setattr(arena, "read_figures", lambda _: figures(0.5, weight=0.2))
    assert measured(cells) == {Bout("FedAvg", "none", 0.0): figures(0.5, weight=0.2)}


@pytest.mark.parametrize("values", [(0.2, 0.4), (None, 0.4)])
def test_figures_are_means_over_the_seeds(values, monkeypatch, tmp_path):
    wanted = bouts(["FedAvg"], [], [])
    cells = arena_cells(wanted, 2, default_run_config(), tmp_path)
    ready = iter([figures(0.5, weight=values[0]), figures(0.7, weight=values[1])])
    monkeypatch.setattr(arena, "find_result", lambda _: tmp_path)
    monkeypatch.setattr(arena, "read_figures", lambda _: next(ready))
    (found,) = measured(cells).values()
    assert found.accuracy == pytest.approx(0.6)
    expected = None if None in values else pytest.approx(0.3)
    assert found.malicious_weight == expected
