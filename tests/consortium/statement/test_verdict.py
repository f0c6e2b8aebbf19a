from __future__ import annotations

import pytest

from fedif_consortium.statement.verdict import RULES, Beyond, Facts, judge

BORROWED = Beyond(1.2, 1.0, 30.0)

CASES = [
    (Facts(0.4, 0.5, (0.1, 0.9), 20, 0), "accept", "it contributed"),
    (Facts(0.4, -0.5, (-0.1, 0.9), 20, 0), "accept", "it contributed"),
    (Facts(0.4, 0.5, (0.1, 0.9), 20, 2), "review", "2 of its 22 replies were refused"),
    (Facts(0.4, 0.5, (0.1, 0.9), 2, 3), "quarantine", "3 of its 5 replies were refused"),
    (Facts(0.4, 0.5, (0.1, 0.9), 3, 3), "review", "3 of its 6 replies"),
    (Facts(0.0, 0.5, (0.0, 0.0), 20, 0), "review", "exactly 0"),
    (Facts(0.0, 0.0, (0.0, 0.0), 0, 0), "review", "none of its replies was accepted"),
    (Facts(0.12, 0.5, (0.1, 1.2), 9, 0), "review", "less than a quarter of an equal part"),
    (Facts(0.13, 0.5, (-0.1, 1.2), 9, 0), "accept", "it contributed"),
    (Facts(-0.1, 0.5, (-0.4, 0.2), 9, 0), "review", "raised the loss"),
    (Facts(-0.1, 0.5, (-0.4, -0.01), 9, 0), "quarantine", "whole interval is negative"),
    (Facts(-0.1, 0.5, None, 3, 0), "review", "raised the loss"),
    (Facts(0.4, 0.5, None, 3, 0), "review", "too few rounds to judge by: 3"),
    (Facts(0.4, 0.5, (0.0, 1.2), 1, 0), "review", "too few rounds to judge by: 1"),
    (Facts(0.4, 0.5, (0.1, 0.9), 20, 0, has_same_part=True), "review", "the same own part"),
    (
        Facts(0.4, 0.5, (0.1, 0.9), 20, 0, uncredited=0.3, usual=BORROWED),
        "review",
        "not credited: they hold 30.0 times as much of the last steps",
    ),
    (Facts(0.4, 0.5, (0.1, 0.9), 20, 0, uncredited=0.05, usual=BORROWED), "accept", "contributed"),
    (
        Facts(0.4, 0.5, (0.1, 0.9), 20, 0, usual=Beyond(opposed_rounds=3)),
        "review",
        "in 3 rounds its update and another member's cancelled each other",
    ),
]


@pytest.mark.parametrize(("facts", "level", "reason"), CASES)
def test_each_rule(facts, level, reason):
    verdict = judge(facts)
    assert verdict.level == level
    assert reason in verdict.reason


def test_every_rule_is_reached():
    reached = {next(rule.words for rule in RULES if rule.applies(facts)) for facts, *_ in CASES}
    assert reached == {rule.words for rule in RULES}
