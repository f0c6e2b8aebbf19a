"""What a statement says of one member, and the verdict: a table of rules, the first that applies.

A verdict is advice to people, who look before they act. It changes no payment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from fedif_consortium.statement.luck import Between
from fedif_consortium.statement.settings import RELATIVE

Level = Literal["accept", "review", "quarantine"]


@dataclass(frozen=True)
class Verdict:
    """Whether people should look at a member, why, and what to look at."""

    level: Level
    reason: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class MemberAccount:
    """One member over the whole run.

    Attributes
    ----------
    client_id, partition_id : int
        Its lasting id, and the part of the data that it says it holds (-1: unknown).
    name : str
        What pages call it.
    page : str
        Its page, by path below the statement's folder. The number is the member's position, not
        its id: members get to see these paths.
    asked, taken_part, refused, away, late : int
        Rounds: in all, with an accepted reply, with a refused one, without any; and rounds that it
        took part in with a reply that came after the round.
    signed : int
        Accepted replies that it signed.
    revoked_in : int, optional
        The round in which the operator ended its registration.
    examples : float, optional
        The most examples it claimed and was believed.
    weight_score : float, optional
        Omega after its last round.
    refusals : tuple of (str, int)
        Why replies did not count, and how often.
    contribution : float
        In nats of validation loss; negative: it raised the loss.
    credited : float
        The part of the contribution that lies within the bounds; at most the contribution.
    left_out_harm : float
        By how much its updates raised the loss in the rounds that are left out, all of them
        together, in multiples of what the whole run lowered it by; 0: they did not.
    by_class : tuple of float
        The contribution in each class's loss, where that was attributed.
    equal_part : float
        What the contribution would be if all with a part in a round's step had an equal one; with a
        server's momentum that are also those whose earlier updates it carries on.
    other_rounds : float, optional
        The contribution without the decisive round, where there is one.
    per_draw : float, optional
        The contribution over the number of rounds in which it was asked.
    length, weight, borrowed : float
        Its updates' length, its weight and what they hold of the last steps: means over its
        rounds, in multiples of what is usual.
    opposed_rounds : int
        Rounds in which its update was turned against another one.
    has_same_part : bool
        Whether its updates have the same own part as another member's.
    is_weighed_by_length : bool
        Whether longer updates had more weight in this run.
    place : int
        Its place among all by what its share is of.
    alike : int
        How many others its group has, from whom it is not told apart.
    own_share, share : float
        Its share of what was gained, in [0, 1], before and after those who are not told apart were
        paid alike.
    cents : int, optional
        Its part of the budget.
    intervals : tuple of Between
        The contribution's 95 % intervals, one for each kind of luck; the last is about all of them.
    draw_intervals, share_intervals : tuple of Between
        The same of ``per_draw`` and ``own_share``. Where there are ``noise_shares``, intervals of
        the share are the unions with those at both ends.
    noise_shares : tuple of float
        The share at the lowest and the highest share of wrong labels that the held-out set may
        have; empty: contributions there were not measured.
    mix_interval : tuple of float
        The lowest and the highest share with another mix of the held-out classes; empty:
        contributions are not by class.
    verdict : Verdict
        Accept, review or quarantine, and why.
    """

    client_id: int
    partition_id: int
    name: str
    page: str
    asked: int
    taken_part: int
    refused: int
    away: int
    late: int
    signed: int
    revoked_in: int | None
    examples: float | None
    weight_score: float | None
    refusals: tuple[tuple[str, int], ...]
    contribution: float
    credited: float
    left_out_harm: float
    by_class: tuple[float, ...]
    equal_part: float
    other_rounds: float | None
    per_draw: float | None
    length: float
    weight: float
    borrowed: float
    opposed_rounds: int
    has_same_part: bool
    is_weighed_by_length: bool
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
        """The interval of the contribution about every kind of luck."""
        if not self.intervals:
            return None
        return self.intervals[-1].low, self.intervals[-1].high

    @property
    def may_be_nothing(self) -> bool:
        """Whether the interval of what it contributed includes 0."""
        if self.interval is None or self.contribution == 0:
            return False
        low, high = self.interval
        return low <= 0 <= high

    @property
    def replies(self) -> int:
        """How many came."""
        return self.taken_part + self.refused


@dataclass(frozen=True, kw_only=True)
class VerdictRule:
    """One line of the table by which members are judged.

    Attributes
    ----------
    level : {"accept", "review", "quarantine"}
        The verdict where it applies.
    words : str
        When it applies.
    applies : Callable
        Tells whether it does.
    advice : str
        What to look at, for the member and the operator alike.
    reason : str
        Says with a member's figures that the rule applies to it; empty: the words do.
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
# In this order: the first that applies gives the verdict.
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
    """Return the member with the verdict of the first rule that applies."""
    rule = next(rule for rule in RULES if rule.applies(member))
    words = rule.reason or rule.words
    reason = words.format(member)
    return replace(member, verdict=Verdict(rule.level, reason, rule.advice))
