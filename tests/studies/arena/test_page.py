from __future__ import annotations

from fedif_studies.arena.experiments import Experiment, find_setup
from fedif_studies.arena.figures import Figures
from fedif_studies.arena.page import about, details, headline


def figures(accuracy: float, success: float | None = None, weight: float | None = None) -> Figures:
    return Figures(accuracy, success, weight)


FOUND = {
    Experiment("A", "none", 0.0): figures(0.9),
    Experiment("B", "none", 0.0): figures(0.8),
    Experiment("A", "flip", 0.2): figures(0.5, weight=0.1),
    Experiment("B", "flip", 0.2): figures(0.7),
    Experiment("A", "trigger", 0.2): figures(0.85, success=1.0, weight=0.3),
    Experiment("B", "trigger", 0.2): figures(0.6, success=0.25),
    Experiment("A", "flip", 0.4): figures(0.1, weight=0.4),
}


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


def test_a_table_has_the_attacks_and_strategies_for_which_a_figure_is_defined():
    table = details(FOUND, "Weight", "malicious_weight", lambda v: "-" if v is None else f"{v}")
    assert table.heading == ["attack", "A"]
    assert table.lines == [["flip", "0.1 / 0.4"], ["trigger", "0.3 / -"]]
    clean = details(FOUND, "Accuracy", "accuracy", lambda v: "-" if v is None else f"{v}").lines
    assert clean[0] == ["no attack", "0.9", "0.8"]
    assert clean[1] == ["flip", "0.5 / 0.1", "0.7 / -"]


def test_the_page_says_first_who_runs_with_bounds_and_what_these_bring():
    named = ("FedAvg", "FedIF", "influence descent", "AutoBANT", "Krum")
    bouts = [Experiment(name, "PoisonedFL", 0.4) for name in named]
    bounds, control, protocol, _ = about(find_setup(), bouts, 2, "fedif arena")
    assert bounds.startswith("FedIF, influence descent and AutoBANT run with bounds")
    assert "FedAvg's weights with FedIF's bounds 88.1 %" in control
    assert "every 10 rounds here (`patience`; its paper: 50)" in protocol
    assert len(about(find_setup(), bouts[:1], 2, "fedif arena")) == 2  # Nobody has bounds.
