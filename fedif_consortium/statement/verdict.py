"""Accept, review or quarantine: a table of rules, the first that applies decides.

A verdict is advice to people, who look before they act. It changes no payment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Level = Literal["accept", "review", "quarantine"]
MAX_REFUSED = 0.5  # Of the replies that came.
MIN_TAKEN_PART = 3
SMALL_PART = 0.25
MUCH_UNCREDITED = 0.25  # Of the contribution.
OPPOSED = 0.9  # The negated cosine; honest updates were seen at 0.65.
MIN_OPPOSED = 3  # Rounds.


@dataclass(frozen=True)
class Beyond:
    """A member's updates beside what is usual: means over its rounds, in multiples of that.

    ``opposed_rounds`` counts the rounds in which its update was turned against another one.
    """

    length: float = 1.0
    weight: float = 1.0
    borrowed: float = 1.0
    opposed_rounds: int = 0

    @property
    def most(self) -> str:
        """What lies furthest beyond what is usual, in words."""
        found = {
            f"its updates are {self.length:.1f} times as long as is usual": self.length,
            f"its weight is {self.weight:.1f} times that of the median member": self.weight,
            f"they hold {self.borrowed:.1f} times as much of the last steps": self.borrowed,
        }
        return max(found, key=found.__getitem__)


@dataclass(frozen=True)
class Facts:
    """What a verdict rests on; see :class:`~fedif_consortium.statement.account.MemberAccount`."""

    contribution: float
    equal_part: float
    interval: tuple[float, float] | None
    taken_part: int
    refused: int
    has_same_part: bool = False
    uncredited: float = 0.0
    usual: Beyond = Beyond()

    @property
    def replies(self) -> int:
        """How many came."""
        return self.taken_part + self.refused


@dataclass(frozen=True)
class Verdict:
    """Whether people should look at a member, why, and what to look at."""

    level: Level
    reason: str
    advice: str = ""


@dataclass(frozen=True)
class Rule:
    """``words`` say when it applies, ``reason`` of a member that it does, with its figures.

    ``advice`` is what to look at, for the member and the operator alike.
    """

    level: Level
    words: str
    applies: Callable[[Facts], bool]
    reason: str
    advice: str = ""


_REFUSED = "Read why replies were refused, and mend what sent them"
_HARM = (
    "Look at its data before its next run: wrong labels, another scale of the inputs, or examples "
    "of a kind that those that all are judged by do not hold"
)
RULES: tuple[Rule, ...] = (
    Rule(
        "quarantine",
        "more than half of the replies that came were refused",
        lambda f: f.refused > MAX_REFUSED * f.replies,
        "{refused} of its {replies} replies were refused",
        _REFUSED,
    ),
    Rule(
        "review",
        "no reply was accepted",
        lambda f: f.taken_part == 0,
        "none of its replies was accepted",
        "See whether it was online, and in its log why it sent nothing",
    ),
    Rule(
        "quarantine",
        "the contribution is negative, and so is its whole interval",
        lambda f: f.interval is not None and f.interval[1] < 0,
        "its updates raised the loss, and its whole interval is negative",
        _HARM,
    ),
    Rule(
        "review",
        "the contribution is exactly 0",
        lambda f: f.contribution == 0,
        "exactly 0: it sent no change, or was given no weight",
        "See whether it trains at all: that its data are where it looks for them, and that its "
        "learning rate and number of epochs are not 0",
    ),
    Rule(
        "review",
        "the contribution is negative",
        lambda f: f.contribution < 0,
        "its updates raised the loss",
        _HARM,
    ),
    Rule(
        "review",
        "over all rounds, five at least, its updates have the same own part as another member's",
        lambda f: f.has_same_part,
        "these members' updates have the same own part: the same data under several names, or one "
        "owner who sends several updates",
        "Ask those of whom this is said whose data they train on: of the same data under two names "
        "one is paid for nothing new",
    ),
    Rule(
        "review",
        "in three rounds at least, its update and another member's cancel each other",
        lambda f: f.usual.opposed_rounds >= MIN_OPPOSED,
        "in {usual.opposed_rounds} rounds its update and another member's cancelled each other",
        "Two members that cancel each other leave the model as it is, and one of them is credited: "
        "ask both what they trained on",
    ),
    Rule(
        "review",
        "more than a quarter of the contribution lies beyond what is credited",
        lambda f: f.uncredited > MUCH_UNCREDITED * f.contribution,
        "more than a quarter of its contribution is not credited: {usual.most}",
        "See whether its learning rate, epochs and number of examples are what was agreed on",
    ),
    Rule(
        "review",
        "it took part in fewer than three rounds, or the run has fewer than five",
        lambda f: f.taken_part < MIN_TAKEN_PART or f.interval is None,
        "too few rounds to judge by: {taken_part}",
        "Judge it by a longer run, or by what is known of its data",
    ),
    Rule(
        "review",
        "the contribution is less than a quarter of an equal part of what its rounds gained",
        lambda f: f.contribution < SMALL_PART * f.equal_part,
        "less than a quarter of an equal part of what its rounds gained",
        "See whether its data are like those that all are judged by, and its labels right",
    ),
    Rule(
        "review",
        "a reply was refused",
        lambda f: f.refused > 0,
        "{refused} of its {replies} replies were refused",
        _REFUSED,
    ),
    Rule(
        "accept",
        "otherwise",
        lambda _: True,
        "it contributed, and none of its replies was refused",
    ),
)


def judge(facts: Facts) -> Verdict:
    """Return the verdict of the first rule that applies."""
    rule = next(rule for rule in RULES if rule.applies(facts))
    reason = rule.reason.format(**vars(facts), replies=facts.replies)
    return Verdict(rule.level, reason, rule.advice)
