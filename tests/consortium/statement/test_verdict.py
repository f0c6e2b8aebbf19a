from __future__ import annotations

import dataclasses

import pytest

from fedif_consortium.statement.luck import Between
from fedif_consortium.statement.member_account import RULES, MemberAccount, judged

BORROWED = {"length": 1.2, "weight": 1.0, "borrowed": 30.0}


def facts(contribution, equal_part, interval, taken_part, refused, **more):
    """A member of whom this is known."""
    own = dict.fromkeys((field.name for field in dataclasses.fields(MemberAccount)), 0)
    own |= {"contribution": contribution, "credited": contribution, "equal_part": equal_part}
    intervals = () if interval is None else (Between("luck", *interval),)
    more |= {"taken_part": taken_part, "refused": refused, "intervals": intervals}
    return MemberAccount(**(own | more))


CASES = [
    (facts(0.4, 0.5, (0.1, 0.9), 20, 0), "accept", "it contributed"),
    (facts(0.4, -0.5, (-0.1, 0.9), 20, 0), "accept", "it contributed"),
    (facts(0.4, 0.5, (0.1, 0.9), 20, 2), "review", "2 of its 22 replies were refused"),
    (facts(0.4, 0.5, (0.1, 0.9), 2, 3), "quarantine", "3 of its 5 replies were refused"),
    (facts(0.4, 0.5, (0.1, 0.9), 3, 3), "review", "3 of its 6 replies"),
    (facts(0.0, 0.5, (0.0, 0.0), 20, 0), "review", "exactly 0"),
    (facts(0.0, 0.0, (0.0, 0.0), 0, 0), "review", "no reply was accepted"),
    (facts(0.12, 0.5, (0.1, 1.2), 9, 0), "review", "less than a quarter of an equal part"),
    (facts(0.13, 0.5, (-0.1, 1.2), 9, 0), "accept", "it contributed"),
    (facts(-0.1, 0.5, (-0.4, 0.2), 9, 0), "review", "raised the loss"),
    (facts(-0.1, 0.5, (-0.4, -0.01), 9, 0), "quarantine", "whole interval is negative"),
    (facts(-0.1, 0.5, None, 3, 0), "review", "raised the loss"),
    (facts(0.4, 0.5, None, 3, 0), "review", "too few rounds to judge by: 3"),
    (facts(0.4, 0.5, (0.0, 1.2), 1, 0), "review", "too few rounds to judge by: 1"),
    (facts(0.4, 0.5, (0.1, 0.9), 20, 0, has_same_part=True), "review", "the same own part"),
    (
        facts(0.4, 0.5, (0.1, 0.9), 20, 0, credited=0.1, **BORROWED),
        "review",
        "1.0 times that of the median member, and they hold 30.0 times as much",
    ),
    (facts(0.4, 0.5, (0.1, 0.9), 20, 0, credited=0.35, **BORROWED), "accept", "contributed"),
    (
        facts(0.4, 0.5, (0.1, 0.9), 20, 0, opposed_rounds=3),
        "review",
        "in 3 rounds its update and another member's cancelled each other",
    ),
]


@pytest.mark.parametrize(("member", "level", "reason"), CASES)
def test_each_rule(member, level, reason):
    verdict = judged(member).verdict
    assert verdict.level == level
    assert reason in verdict.reason


def test_every_rule_is_reached():
    reached = {next(rule.words for rule in RULES if rule.applies(member)) for member, *_ in CASES}
    assert reached == {rule.words for rule in RULES}
