from __future__ import annotations

import numpy as np

from fedif_consortium.statement.account import settle
from fedif_consortium.statement.records import read_run
from fedif_consortium.statement.twins import have_twins
from tests.consortium.statement.runs import make_run

ROUNDS = np.array([0.5, 0.4, 0.3, -0.1, 0.2, 0.1])


def columns(*members) -> list[bool]:
    return have_twins(np.stack(members, axis=1)).tolist()


def test_equal_up_to_rounding_in_every_round():
    assert columns(ROUNDS, ROUNDS * (1 + 1e-6), ROUNDS[::-1]) == [True, True, False]


def test_alike_is_not_the_same():
    assert columns(ROUNDS, ROUNDS * 1.01) == [False, False]
    once_different = ROUNDS.copy()
    once_different[3] = 0.1
    assert columns(ROUNDS, once_different) == [False, False]


def test_only_rounds_that_both_have_a_part_in_count_and_five_are_needed():
    away_once = np.concatenate([[0.0], ROUNDS[1:]])
    assert columns(ROUNDS, away_once) == [True, True]
    away_twice = np.concatenate([[0.0, 0.0], ROUNDS[2:]])
    assert columns(ROUNDS, away_twice) == [False, False]


def test_those_who_send_nothing_are_no_twins():
    assert columns(np.zeros(6), np.zeros(6), ROUNDS) == [False, False, False]


def test_a_statement_asks_to_look_at_both(tmp_path):
    rounds = [{0: value, 1: value, 2: 2 * value} for value in (0.5, 0.4, 0.3, 0.2, 0.1)]
    found = settle(read_run(make_run(tmp_path / "run", rounds)))
    levels = {member.partition_id: member.verdict.level for member in found.members}
    assert levels == {0: "review", 1: "review", 2: "accept"}
    reasons = [m.verdict.reason for m in found.members if m.verdict.level == "review"]
    assert all("copied update" in reason and "partition" not in reason for reason in reasons)
