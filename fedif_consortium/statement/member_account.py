"""What a statement says of one member, and the rules that give its verdict.

The rules are a table; the first rule that applies to a member gives its verdict. A verdict is
advice to people, who look before they act. It changes no payment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from fedif_consortium.statement.luck import Between
from fedif_consortium.statement.member_facts import MemberFacts
from fedif_consortium.statement.settings import RELATIVE

Level = Literal["accept", "review", "quarantine"]


@dataclass(frozen=True)
class Verdict:
    """Whether people should look at a member, the reason, and advice on what to look at."""

    level: Level
    reason: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class MemberAccount(MemberFacts):
    """The account of one member over the whole run: the facts, and what it is due.

    Attributes
    ----------
    contribution : float
        The contribution, in nats of validation loss; negative: the member raised the loss.
    credited : float
        The part of the contribution that lies within the bounds; at most the contribution.
    left_out_harm : float
        How much its updates raised the loss in the rounds that are left out, all of them together,
        in multiples of what the whole run lowered it by; 0: they did not.
    other_rounds : float, optional
        The contribution without the decisive round; ``None``: there is no such round.
    per_draw : float, optional
        The contribution divided by the number of rounds in which the member was drawn; ``None``: it
        was drawn in none.
    place : int
        The member's place among all, from 1, by the credits that shares are computed from.
    alike : int
        How many other members are in its group, from whom it is not told apart.
    own_share, share : float
        Its share of the gain, in [0, 1], before and after members that are not told apart are paid
        alike.
    cents : int, optional
        Its amount, in cents; ``None``: there is no budget.
    intervals : tuple of Between
        The 95 % intervals of the contribution, one for each kind of luck; the last is about all of
        them.
    draw_intervals, share_intervals : tuple of Between
        The same for ``per_draw`` and ``own_share``. If there are ``noise_shares``, an interval of
        the share is the union with the shares and intervals at both ends.
    noise_shares : tuple of float
        The share of the gain if the lowest, and if the highest share of labels were wrong that the
        examination allows for; empty: contributions were not measured there.
    mix_interval : tuple of float
        The lowest and the highest share of the gain with another mix of the held-out classes;
        empty: it is not known.
    verdict : Verdict
        Accept, review or quarantine, and why.
    """

    contribution: float
    credited: float
    left_out_harm: float
    other_rounds: float | None
    per_draw: float | None
    place: int
    alike: int
    own_share: float
    share: float
    cents: int | None
    intervals: tuple[Between, ...]
    draw_intervals: tuple[Between, ...]
    share_intervals: tuple[Between, ...]
    noise_shares: tuple[float, ...]
    mix_interval: tuple[float, float] | tuple[()]
    verdict: Verdict = Verdict("accept", "nobody judged it")

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the contribution about all kinds of luck; ``None``: there is none."""
        if not self.intervals:
            return None
        return self.intervals[-1].low, self.intervals[-1].high

    @property
    def may_be_nothing(self) -> bool:
        """Whether the interval of the contribution includes 0, and the contribution is not 0."""
        if self.interval is None or self.contribution == 0:
            return False
        low, high = self.interval
        return low <= 0 <= high

    @property
    def replies(self) -> int:
        """The number of replies that came, accepted or refused."""
        return self.taken_part + self.refused


@dataclass(frozen=True, kw_only=True)
class VerdictRule:
    """One rule of the table by which members are judged.

    Attributes
    ----------
    level : {"accept", "review", "quarantine"}
        The verdict if the rule applies.
    words : str
        The rule's condition in words.
    applies : callable
        Returns whether the rule applies to a member.
    advice : str
        What to look at, for the member and the operator alike.
    reason : str
        A template for the verdict's reason, which is filled with the member's figures; empty:
        ``words`` are the reason.
    """

    level: Level
    words: str
    applies: Callable[[MemberAccount], bool]
    advice: str = ""
    reason: str = ""


def _most_replies_were_refused(member: MemberAccount) -> bool:
    return member.refused > member.replies / 2


def _no_reply_counted(member: MemberAccount) -> bool:
    return member.taken_part == 0


def _surely_raised_the_loss(member: MemberAccount) -> bool:
    if member.interval is None:
        return False
    _, high = member.interval
    return high < 0


def _did_great_harm_in_rounds_left_out(member: MemberAccount) -> bool:
    return member.left_out_harm > 1


def _changed_nothing(member: MemberAccount) -> bool:
    return member.contribution == 0


def _raised_the_loss(member: MemberAccount) -> bool:
    return member.contribution < 0


def _has_the_part_of_another(member: MemberAccount) -> bool:
    return member.has_same_part


def _cancels_with_another(member: MemberAccount) -> bool:
    return member.opposed_rounds >= 3


def _is_credited_much_less(member: MemberAccount) -> bool:
    return member.contribution - member.credited > member.contribution / 4


def _has_too_few_rounds(member: MemberAccount) -> bool:
    return member.taken_part < 3 or member.interval is None


def _contributed_little(member: MemberAccount) -> bool:
    return member.contribution < member.equal_part / 4


def _a_reply_was_refused(member: MemberAccount) -> bool:
    return member.refused > 0


def _is_weighed_by_length(member: MemberAccount) -> bool:
    return member.is_weighed_by_length


def _always(_: MemberAccount) -> bool:
    return True


_REFUSED = "Read why replies were refused, and mend what sent them"
_REPLIES_REFUSED = "{0.refused} of its {0.replies} replies were refused"
_HARM = (
    "Look at its data before its next run: wrong labels, another scale of the inputs, or examples "
    "of a kind that those that all are judged by do not hold"
)
# The order matters: the first rule that applies gives the verdict.
RULES: tuple[VerdictRule, ...] = (
    VerdictRule(
        level="quarantine",
        words="more than half of the replies that came were refused",
        applies=_most_replies_were_refused,
        advice=_REFUSED,
        reason=_REPLIES_REFUSED,
    ),
    VerdictRule(
        level="review",
        words="no reply was accepted",
        applies=_no_reply_counted,
        advice="See whether it was online, and in its log why it sent nothing",
    ),
    VerdictRule(
        level="quarantine",
        words="the updates raised the loss, and the whole interval is negative",
        applies=_surely_raised_the_loss,
        advice=_HARM,
    ),
    VerdictRule(
        level="quarantine",
        words="in rounds that are left out, its updates raised the loss by more than the run "
        "lowered it",
        applies=_did_great_harm_in_rounds_left_out,
        advice=_HARM,
        reason="in rounds that are left out, its updates raised the loss by "
        "{0.left_out_harm:.1f} times what the whole run lowered it by",
    ),
    VerdictRule(
        level="review",
        words="the contribution is exactly 0: no change was sent, or it was given no weight",
        applies=_changed_nothing,
        advice="See whether it trains at all: that its data are where it looks for them, and that "
        "its learning rate and number of epochs are not 0",
    ),
    VerdictRule(
        level="review",
        words="the updates raised the loss",
        applies=_raised_the_loss,
        advice=_HARM,
    ),
    VerdictRule(
        level="review",
        words="over all rounds, five at least, its updates have the same own part as another "
        "member's",
        applies=_has_the_part_of_another,
        advice="Ask those of whom this is said whose data they train on: of the same data under "
        "two names one is paid for nothing new",
    ),
    VerdictRule(
        level="review",
        words="in three rounds at least, its update and another member's cancel each other",
        applies=_cancels_with_another,
        advice="Two members that cancel each other leave the model as it is, and one of them is "
        "credited: ask both what they trained on",
        reason="in {0.opposed_rounds} rounds its update and another member's cancelled each other",
    ),
    VerdictRule(
        level="review",
        words="more than a quarter of the contribution lies beyond what is credited",
        applies=_is_credited_much_less,
        advice="See whether its learning rate, epochs and number of examples are what was agreed "
        "on",
        reason="more than a quarter of its contribution is not credited: its updates are "
        "{0.length:.1f} times as long as is usual, its weight is {0.weight:.1f} times that of the "
        "median member, and they hold {0.borrowed:.1f} times as much of the last steps",
    ),
    VerdictRule(
        level="review",
        words="it took part in fewer than three rounds, or the run has fewer than five",
        applies=_has_too_few_rounds,
        advice="Judge it by a longer run, or by what is known of its data",
        reason="too few rounds to judge by: {0.taken_part}",
    ),
    VerdictRule(
        level="review",
        words="the contribution is less than a quarter of an equal part of what its rounds gained",
        applies=_contributed_little,
        advice="See whether its data are like those that all are judged by, and its labels right",
    ),
    VerdictRule(
        level="review",
        words="a reply was refused",
        applies=_a_reply_was_refused,
        advice=_REFUSED,
        reason=_REPLIES_REFUSED,
    ),
    VerdictRule(
        level="review",
        words="weights followed the length of updates, so that who sends longer ones is credited "
        "more",
        applies=_is_weighed_by_length,
        advice="See whether its learning rate and epochs are what was agreed on. A run that pays "
        f"is to have {RELATIVE} = true",
    ),
    VerdictRule(
        level="accept",
        words="it contributed, and none of its replies was refused",
        applies=_always,
    ),
)


def with_verdict(member: MemberAccount) -> MemberAccount:
    """Return the member's account with the verdict of the first rule that applies."""
    rule = next(rule for rule in RULES if rule.applies(member))
    words = rule.reason or rule.words
    reason = words.format(member)
    return replace(member, verdict=Verdict(rule.level, reason, rule.advice))
