from __future__ import annotations

from fedif_studies.arena.tables import every_attack, worst_cases, write_tables


def bout(
    rule: str, attack: str, share: str, seed: int, accuracy: str, success: str = ""
) -> dict[str, str]:
    found = {"accuracy": accuracy, "attack-success": success}
    place = {"data": "D", "seed": str(seed), "attack": attack, "share": share}
    return {**place, "rule": rule, "bounds": "none", **found}


ROWS = [
    bout("A", "none", "0.0", 0, "0.9"),
    bout("B", "none", "0.0", 0, "0.8"),
    bout("A", "flip", "0.2", 0, "0.5"),
    bout("A", "flip", "0.2", 1, "0.7"),
    bout("B", "flip", "0.2", 0, "0.7"),
    bout("A", "trigger", "0.2", 0, "0.85", "1.0"),
    bout("B", "trigger", "0.2", 0, "0.6", "0.25"),
    bout("A", "flip", "0.4", 0, "0.1"),
]


def test_the_worst_cases():
    table = worst_cases(ROWS, "D")
    assert table.heading[3:] == [
        *("worst at 20%, by", "worst at 40%, by", "backdoor at 20%", "backdoor at 40%"),
    ]
    assert table.lines == [
        ["A", "none", "90.0", "60.0±14.1, flip", "10.0, flip", "100.0, trigger", "-"],
        ["B", "none", "80.0", "60.0, trigger", "-", "25.0, trigger", "-"],
    ]


def test_every_attack_has_a_line():
    table = every_attack(ROWS, "D", "accuracy")
    assert table.heading == ["attack", "A, none", "B, none"]
    assert table.lines[0] == ["no attack", "90.0", "80.0"]
    assert table.lines[-1] == ["flip, 40%", "10.0", "-"]


def test_tables_go_between_a_page_s_marks(tmp_path):
    page = tmp_path / "new" / "arena.md"
    write_tables(page, ROWS)
    first = page.read_text()
    assert "| B | none | 80.0 | 60.0, trigger | - | 25.0, trigger | - |" in first
    page.write_text(first.replace("# Arena", "# Ours"))
    write_tables(page, ROWS)
    assert page.read_text() == first.replace("# Arena", "# Ours")
