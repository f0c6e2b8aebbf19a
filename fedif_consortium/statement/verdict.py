"""Accept, review or quarantine: a table of rules, the first that applies decides.

A verdict is advice to people, who look before they act. It changes no payment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedif_consortium.statement.member_account import Level, MemberAccount, Verdict


@dataclass(frozen=True)
class Rule:
    """``words`` say when it applies; ``advice`` is for the member and the operator alike.

    ``reason`` says of a member that it does, with its figures; empty: as the words do.
    """

    level: Level
    words: str
    applies: Callable[[MemberAccount], bool]
    advice: str = ""
    reason: str = ""


_REFUSED = "Read why replies were refused, and mend what sent them"
_HARM = (
    "Look at its data before its next run: wrong labels, another scale of the inputs, or examples "
    "of a kind that those that all are judged by do not hold"
)
RULES: tuple[Rule, ...] = (
    Rule(
        "quarantine",
        "more than half of the replies that came were refused",
        lambda f: f.refused > f.replies / 2,
        _REFUSED,
        "{0.refused} of its {0.replies} replies were refused",
    ),
    Rule(
        "review",
        "no reply was accepted",
        lambda f: f.taken_part == 0,
        "See whether it was online, and in its log why it sent nothing",
    ),
    Rule(
        "quarantine",
        "the updates raised the loss, and the whole interval is negative",
        lambda f: f.interval is not None and f.interval[1] < 0,
        _HARM,
    ),
    Rule(
        "review",
        "the contribution is exactly 0: no change was sent, or it was given no weight",
        lambda f: f.contribution == 0,
        "See whether it trains at all: that its data are where it looks for them, and that its "
        "learning rate and number of epochs are not 0",
    ),
    Rule("review", "the updates raised the loss", lambda f: f.contribution < 0, _HARM),
    Rule(
        "review",
        "over all rounds, five at least, its updates have the same own part as another member's",
        lambda f: f.has_same_part,
        "Ask those of whom this is said whose data they train on: of the same data under two names "
        "one is paid for nothing new",
    ),
    Rule(
        "review",
        "in three rounds at least, its update and another member's cancel each other",
        lambda f: f.opposed_rounds >= 3,
        "Two members that cancel each other leave the model as it is, and one of them is credited: "
        "ask both what they trained on",
        "in {0.opposed_rounds} rounds its update and another member's cancelled each other",
    ),
    Rule(
        "review",
        "more than a quarter of the contribution lies beyond what is credited",
        lambda f: f.contribution - f.credited > f.contribution / 4,
        "See whether its learning rate, epochs and number of examples are what was agreed on",
        "more than a quarter of its contribution is not credited: its updates are {0.length:.1f} "
        "times as long as is usual, its weight is {0.weight:.1f} times that of the median member, "
        "and they hold {0.borrowed:.1f} times as much of the last steps",
    ),
    Rule(
        "review",
        "it took part in fewer than three rounds, or the run has fewer than five",
        lambda f: f.taken_part < 3 or f.interval is None,
        "Judge it by a longer run, or by what is known of its data",
        "too few rounds to judge by: {0.taken_part}",
    ),
    Rule(
        "review",
        "the contribution is less than a quarter of an equal part of what its rounds gained",
        lambda f: f.contribution < f.equal_part / 4,
        "See whether its data are like those that all are judged by, and its labels right",
    ),
    Rule(
        "review",
        "a reply was refused",
        lambda f: f.refused > 0,
        _REFUSED,
        "{0.refused} of its {0.replies} replies were refused",
    ),
    Rule("accept", "it contributed, and none of its replies was refused", lambda _: True),
)


def judge(member: MemberAccount) -> Verdict:
    """Return the verdict of the first rule that applies."""
    rule = next(rule for rule in RULES if rule.applies(member))
    return Verdict(rule.level, (rule.reason or rule.words).format(member), rule.advice)
