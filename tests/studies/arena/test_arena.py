"""The arena: its bouts, what one led to, and the tables of many."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections import Counter
from itertools import product

import pytest
from PIL import Image

from fedif_flower.attacks import ATTACKS as REGISTERED_ATTACKS
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.strategies.registry import STRATEGIES
from fedif_studies.arena.bouts import ATTACKS, RULES, SHARES, bouts, name_of_data, play, setup
from fedif_studies.arena.figures import attackers_gain, low_means_auc, read_figures
from fedif_studies.arena.tables import (
    every_attack,
    missing_bouts,
    worst_cases,
    write_tables,
)
from fedif_studies.lab import filling
from fedif_studies.lab.filling import missing
from fedif_studies.names import NAMES
from fedif_studies.rows import Row, add_rows


def test_every_rule_meets_every_attack_that_there_is():
    wanted = bouts("Digits", [0, 1], shares=",".join(map(str, SHARES)))
    assert len(wanted) == 2 * 2 * len(RULES) * (1 + len(ATTACKS) * len(SHARES))
    assert {rule["rule.weights"] for rule in RULES.values()} <= {*STRATEGIES, *NAMES}
    assert all(REGISTERED_ATTACKS[str(attack["attack"])] for attack in ATTACKS.values())


@pytest.mark.parametrize("choice", [("nobody",), ("", "none"), ("", "", "1"), ("", "", "half")])
def test_a_name_or_share_that_is_not_known_is_refused(choice):
    with pytest.raises(ConfigError, match="allowed: "):
        bouts("Digits", [0], *choice)


def test_a_bout_leaves_a_row_and_is_not_played_again(tmp_path, monkeypatch):
    monkeypatch.setattr(filling, "require_committed", lambda: None)
    monkeypatch.setattr(filling, "loaded_revision", lambda: "abc")
    common = {**setup(), "num-clients": 5, "fraction-train": 0.8, "num-server-rounds": 2}
    wanted = bouts("Digits", [0], "median,NNM + RFA", "sign-flip", "0.4")
    path = tmp_path / "arena.csv"
    for _ in range(2):
        assert play(path, wanted, {**common, "local-epochs": 1}, jobs=1)
    rows = read_rows(path)
    assert [(row["attack"], row["rule"], row["bounds"]) for row in rows] == [
        (attack, rule, bounds)
        for attack in ("none", "sign-flip")
        for rule, own in (("median", "length"), ("NNM + RFA", "full"))
        for bounds in ("none", own)
    ]
    assert all(0 <= float(row["accuracy"]) <= 1 and row["revision"] == "abc" for row in rows)
    monkeypatch.setattr(filling, "loaded_revision", lambda: "later")
    assert play(path, wanted[:1], {**common, "local-epochs": 1}, jobs=1, again=True)
    of_revision = Counter(row["revision"] for row in read_rows(path))
    assert of_revision == {"abc": len(rows) - 1, "later": 1}
    assert rows[-1]["malicious-weight"]
    assert not rows[0]["malicious-weight"]


RULE = """\
from fedif_flower.strategies import FedAvg


class Own(FedAvg):
    edition = {}
"""


def test_a_rule_of_ones_own_that_was_edited_has_other_bouts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "arena.csv"

    def wanted(edition: int) -> list[Row]:
        (tmp_path / "own_arena_rule.py").write_text(RULE.format(edition))
        sys.modules.pop("own_arena_rule", None)  # As in a new process.
        importlib.invalidate_caches()
        return bouts("D", [0], "median,own_arena_rule:Own", "sign-flip", "0.4")

    first = wanted(1)
    [code] = {bout["code"] for bout in first if bout["rule"] != "median"}
    assert len(code) == 12
    assert {bout["code"] for bout in first if bout["rule"] == "median"} == {""}
    origin = {"revision": "abc", "accuracy": "0.5", "attack-success": ""}
    add_rows(path, [bout | origin for bout in first])
    assert missing(path, wanted(1)) == []
    edited = missing(path, wanted(2))
    assert {bout["rule"] for bout in edited} == {"own_arena_rule:Own"}
    add_rows(path, [bout | origin | {"accuracy": "0.9"} for bout in edited])
    lines = worst_cases(read_rows(path), "D").lines
    assert {line[0]: line[2] for line in lines} == {"median": "50.0", "own_arena_rule:Own": "90.0"}
    # Rows from before there was a column are those of the arena's own rules.
    old = tmp_path / "old.csv"
    names = [bout for bout in first if bout["rule"] == "median"]
    without = [{key: bout[key] for key in bout if key != "code"} for bout in names]
    add_rows(old, [bout | origin for bout in without])
    assert missing(old, names) == []


def test_bouts_of_two_folders_of_images_are_of_two_data_sets(tmp_path):
    names = []
    for shade in (100, 200, 100):
        folder = tmp_path / str(len(names))
        for split, label in product(("train", "test"), "ab"):
            (folder / split / label).mkdir(parents=True)
            Image.new("L", (4, 4), shade + ord(label)).save(folder / split / label / "0.png")
        names.append(name_of_data("image-folder", str(folder)))
    assert names[0] == names[2] != names[1]  # What is in a folder counts, not where it lies.
    assert all(name.startswith("image-folder ") for name in names)
    assert name_of_data("digits") == "Digits"  # As the committed rows have it.


MALICIOUS = {"1": False, "2": True, "3": False, "4": True}


def test_malicious_clients_are_found_by_low_means():
    values = {"1": [0.9], "2": [0.1, 0.7], "3": [0.3]}  # the second's mean is 0.4
    assert low_means_auc(values, MALICIOUS) == 0.5
    assert low_means_auc({"1": [0.9], "2": [0.1, 0.7]}, MALICIOUS) == 1
    assert low_means_auc({"1": [0.9], "3": [0.3]}, MALICIOUS) is None


def test_attackers_are_paid_the_sum_of_what_they_contributed_and_never_less_than_nothing():
    contributions = {"1": [3.0, -1.0], "2": [0.5, 0.5], "3": [-4.0], "4": [-2.0, 1.0]}
    # Malicious: 1 and 0; honest: 2 and 0.
    assert attackers_gain(contributions, MALICIOUS) == 0.5
    assert attackers_gain({"1": [1.0], "2": [0.0]}, MALICIOUS) == 0
    assert attackers_gain({"1": [-1.0], "2": [1.0]}, MALICIOUS) is None
    assert attackers_gain({"2": [1.0]}, MALICIOUS) is None


@pytest.mark.parametrize(
    ("decrease", "remainder", "gain"), [(3.0, 0.0, 0.5), (-1.0, -4.0, None), (None, None, None)]
)
def test_a_runs_figures_are_read_from_its_files(decrease, remainder, gain, tmp_path):
    summary = {
        **{"test_accuracy_last_ten": 0.8, "attack_success": None},
        **{"malicious_weight_share": 0.25, "aggregation_seconds_per_round": 0.003},
    }
    files = {
        "summary.json": json.dumps(summary),
        "clients.csv": "round,client_id,malicious,weight\n1,1,0,0.75\n1,2,1,0.25\n",
    }
    if decrease is not None:
        rounds = "round,loss_before,loss_after,decrease,attributed,remainder\n"
        rounds += f"1,4,{4 - decrease},{decrease},{decrease - remainder},{remainder}\n"
        own = "round,client_id,contribution\n1,1,2\n1,2,1\n"
        files |= {"attribution_rounds.csv": rounds, "attribution.csv": own}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert read_figures(RunFolder(tmp_path)) == {
        "accuracy": "0.8",
        "attack-success": "",
        "malicious-weight": "0.25",
        "weight-auc": "1",
        "attribution-auc": "" if decrease is None else "1",
        "attackers-gain": "" if gain is None else "0.5",
        "aggregation-seconds": "0.003",
    }


def test_rounds_that_a_statement_leaves_out_bring_nobody_a_gain(tmp_path):
    # 4 -> 2 -> 50 -> 2 -> 1: client 2 harms, and both repair more than was lost.
    (tmp_path / "summary.json").write_text(
        '{"test_accuracy_last_ten": 0.8, "attack_success": null, "malicious_weight_share": 0.25, '
        '"aggregation_seconds_per_round": 0.003}'
    )
    (tmp_path / "clients.csv").write_text(
        "round,client_id,malicious,weight\n1,1,0,0.75\n1,2,1,0.25\n"
    )
    (tmp_path / "attribution_rounds.csv").write_text(
        "round,loss_before,loss_after,decrease,attributed,remainder\n"
        "1,4,2,2,2,0\n2,2,50,-48,-48,0\n3,50,2,48,70,-22\n4,2,1,1,1,0\n"
    )
    (tmp_path / "attribution.csv").write_text(
        "round,client_id,contribution\n1,1,2\n2,2,-48\n3,1,10\n3,2,60\n4,2,1\n"
    )
    assert read_figures(RunFolder(tmp_path))["attackers-gain"] == "0.5"


TEXT = """\
data,bounds,rule,attack,share,seed,accuracy,attack-success
D,none,A,none,0.0,0,0.9,
D,none,B,none,0.0,0,0.8,
D,none,A,flip,0.2,0,0.5,
D,none,A,flip,0.2,1,0.7,
D,none,B,flip,0.2,0,0.7,
D,none,A,trigger,0.2,0,0.85,1.0
D,none,B,trigger,0.2,0,0.6,0.25
D,none,A,flip,0.4,0,0.1,
"""
ROWS = list(csv.DictReader(TEXT.splitlines()))


def test_the_worst_cases():
    table = worst_cases(ROWS, "D")
    assert table.heading[3:5] == ["worst at 20%, by", "worst at 40%, by"]
    assert table.heading[5:] == ["backdoor at 20%", "backdoor at 40%"]
    assert table.lines == [
        ["A", "none", "90.0", "60.0±14.1, flip", "10.0, flip", "100.0, trigger", "-"],
        ["B", "none", "80.0", "60.0, trigger", "-", "25.0, trigger", "-"],
    ]


def test_a_rule_that_has_met_fewer_attacks_says_so():
    rows = [row for row in ROWS if (row["rule"], row["attack"]) != ("B", "trigger")]
    _, (*_, worst_of_b, at_40, backdoor, _) = worst_cases(rows, "D").lines
    assert worst_of_b == "70.0, flip (1 of 2 attacks met)"
    assert (at_40, backdoor) == ("-", "-")


def test_every_attack_has_a_line():
    table = every_attack(ROWS, "D", "accuracy")
    assert table.heading == ["attack", "A, none", "B, none"]
    assert table.lines[0] == ["no attack", "90.0", "80.0"]
    assert table.lines[-1] == ["flip, 40%", "10.0", "-"]


def test_shares_that_are_near_each_other_are_two_lines():
    bout = {"data": "D", "seed": "0", "bounds": "none", "rule": "A", "attack": "flip"}
    bout["attack-success"] = ""
    rows = [
        {**bout, "share": "0.12", "accuracy": "0.5"},
        {**bout, "share": "0.125", "accuracy": "0.9"},
    ]
    assert every_attack(rows, "D", "accuracy").lines == [
        ["flip, 12%", "50.0"],
        ["flip, 12.5%", "90.0"],
    ]
    assert worst_cases(rows, "D").heading[3:5] == ["worst at 12%, by", "worst at 12.5%, by"]


def test_tables_go_between_a_page_s_marks(tmp_path):
    page = tmp_path / "new" / "arena.md"
    write_tables(page, ROWS)
    first = page.read_text()
    assert "| B | none | 80.0 | 60.0, trigger | - | 25.0, trigger | - |" in first
    page.write_text(first.replace("# Arena", "# Ours"))
    write_tables(page, ROWS)
    assert page.read_text() == first.replace("# Arena", "# Ours")


def test_without_backdoors_the_page_says_so_and_has_room_for_them(tmp_path):
    page = tmp_path / "arena.md"
    write_tables(page, ROWS[:5])
    assert "\nNone of these attacks is a backdoor.\n" in page.read_text()
    write_tables(page, ROWS)
    assert "| trigger, 20% | 100.0 | 25.0 |" in page.read_text()


def test_a_data_set_that_comes_later_has_tables_on_the_page_too(tmp_path):
    page = tmp_path / "arena.md"
    write_tables(page, ROWS)
    others = [{**row, "data": "E"} for row in ROWS]
    write_tables(page, [*ROWS, *others])
    text = page.read_text()
    accuracy = "test accuracy in the mean of the last ten rounds"
    success = "a backdoor's success after the last round"
    assert text.count(f"## E: {accuracy}, and {success}, %") == 1
    assert text.count(f"## E: {success}, %") == 1
    assert text.count("| B | none | 80.0 | 60.0, trigger | - | 25.0, trigger | - |") == 2
    # Of a page that somebody wrote, with some tables alone, it stays so.
    page.write_text("<!-- begin: D accuracy -->\n<!-- end: D accuracy -->\n")
    write_tables(page, ROWS)
    assert page.read_text().count("<!-- begin: ") == 1


def test_tables_say_how_many_bouts_have_no_row(tmp_path):
    # Two rules, four points and two seeds; eight rows.
    assert missing_bouts(ROWS, "D") == [
        "",
        "Missing: 8 of 16 bouts of these rules, attacks and seeds.",
    ]
    assert missing_bouts(ROWS[:2], "D") == []
    write_tables(tmp_path / "arena.md", ROWS)
    assert "| 10.0, flip | 100.0, trigger | - |\n" in (tmp_path / "arena.md").read_text()
    assert (tmp_path / "arena.md").read_text().count("\n\nMissing: 8 of 16 bouts") == 3


def test_seeds_of_edited_and_unedited_code_have_no_mean_together():
    """Of three seeds, one was played again since the rule was edited: the other two are missing."""
    bout = {"data": "D", "attack": "none", "share": "0.0", "bounds": "none", "attack-success": ""}
    own = {**bout, "rule": "own:Rule", "code": "aaaa", "accuracy": "0.2"}
    other = {**bout, "rule": "A", "code": "", "accuracy": "0.5"}
    rows = [{**row, "seed": seed} for row in (own, other) for seed in "012"]
    rows.append({**own, "seed": "0", "code": "bbbb", "accuracy": "0.9"})
    assert every_attack(rows, "D", "accuracy").lines == [["no attack", "90.0", "50.0±0.0"]]
    assert missing_bouts(rows, "D")[1].startswith("Missing: 2 of 6 bouts")
