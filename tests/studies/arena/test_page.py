from __future__ import annotations

from fedif_studies.arena.experiments import Experiment, find_setup
from fedif_studies.arena.figures import Figures
from fedif_studies.arena.page import about, best_answers, details, headline, write_page


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


def test_the_page_has_its_picture_and_its_command(tmp_path):
    page = tmp_path / "pages" / "arena.md"
    told = about(find_setup(), list(FOUND), 1, "fedif arena --seeds 1")
    write_page(FOUND, page, "Digits", told)
    text = page.read_text()
    assert text.startswith("# Arena: Digits\n")
    assert "50 clients of which 10 train in a round, 40 rounds, 1 seed; 20% or 40%" in " ".join(
        text.split()
    )
    assert "![accuracy under attack](arena.png)" in text
    assert (page.parent / "arena.png").read_bytes().startswith(b"\x89PNG")
    assert "| A | 90.0 | 50.0, flip | 10.0, flip | 100.0 | - |" in text
    assert "malicious clients 20% / 40%." in text
    assert "`fedif arena --seeds 1`" in text


def test_a_figure_stands_beside_its_deviation_over_the_seeds():
    found = {
        Experiment("A", "none", 0.0): figures(0.9),
        Experiment("A", "flip", 0.2): Figures(0.5, 0.25, accuracy_deviation=0.013),
        Experiment("B", "flip", 0.2): Figures(
            0.4, 0.125, accuracy_deviation=0.1, attack_success_deviation=0.05
        ),
    }
    assert headline(found).lines[0] == ["A", "90.0", "50.0 ± 1.3, flip", "25.0"]
    assert headline(found).lines[1] == ["B", "-", "40.0 ± 10.0, flip", "12.5 ± 5.0"]
    table = details(found, "Accuracy", "accuracy", lambda v: "-" if v is None else f"{v}")
    assert table.lines[1] == ["flip", "0.5 ± 0.013", "0.4 ± 0.1"]
    assert best_answers(found).lines == [
        ["flip", "20%", "50.0 ± 1.3, A", "40.0", "12.5 ± 5.0, B"],
    ]


def test_the_page_says_which_bouts_were_chosen():
    text = " ".join(about(find_setup(), list(FOUND), 3, "fedif arena"))
    assert "every attack at 20%, at the other shares flip." in text
    assert "the standard deviation between seeds" in text
    same = [one for one in FOUND if one.share != 0.4]
    assert "Chosen before" not in " ".join(about(find_setup(), same, 1, "fedif arena"))


def test_the_page_says_first_who_runs_with_bounds_and_what_these_bring():
    named = ("FedAvg", "FedIF", "influence descent", "AutoBANT", "Krum")
    bouts = [Experiment(name, "PoisonedFL", 0.4) for name in named]
    bounds, control, protocol, _ = about(find_setup(), bouts, 2, "fedif arena")
    assert bounds.startswith("FedIF, influence descent and AutoBANT run with bounds")
    assert "FedAvg's weights with FedIF's bounds 89.1 %" in control
    assert "every 10 rounds here (`patience`; its paper: 50)" in protocol
    assert len(about(find_setup(), bouts[:1], 2, "fedif arena")) == 2  # Nobody has bounds.
