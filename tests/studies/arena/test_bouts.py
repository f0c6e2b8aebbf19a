from __future__ import annotations

import pytest

from fedif_flower.attacks import ATTACKS as REGISTERED_ATTACKS
from fedif_flower.errors import ConfigError
from fedif_flower.run.rows import read_rows
from fedif_flower.strategies.registry import STRATEGIES
from fedif_studies.arena.bouts import ATTACKS, RULES, SHARES, bouts, play, setup
from fedif_studies.lab import run
from fedif_studies.names import NAMES


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
    monkeypatch.setattr(run, "committed_revision", lambda: "abc")
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
    assert rows[-1]["malicious-weight"]
    assert not rows[0]["malicious-weight"]
