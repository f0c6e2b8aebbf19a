"""What a statement says of one member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedif_consortium.statement.luck import Between

Level = Literal["accept", "review", "quarantine"]


@dataclass(frozen=True)
class Verdict:
    """Whether people should look at a member, why, and what to look at."""

    level: Level
    reason: str
    advice: str = ""


@dataclass(frozen=True)
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
        Rounds: in all, with an accepted reply, with a refused one, without any; and of those that
        it took part in, with one that came after the round.
    signed : int
        Accepted replies that it signed.
    revoked_in : int, optional
        The round in which the operator ended its registration.
    examples : float, optional
        The most examples it claimed and was believed.
    weight_score : float, optional
        Omega after its last round.
    refusals : tuple of (str, int)
        Why replies were refused, and how often.
    contribution : float
        In nats of validation loss; negative: it raised the loss.
    credited : float
        What of the contribution lies within the bounds; at most the contribution.
    by_class : tuple of float
        The contribution in each class's loss, where that was attributed.
    equal_part : float
        What it would be if each round's were shared equally among those who took part.
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
        The same of ``per_draw`` and ``own_share``.
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
    by_class: tuple[float, ...]
    equal_part: float
    other_rounds: float | None
    per_draw: float | None
    length: float
    weight: float
    borrowed: float
    opposed_rounds: int
    has_same_part: bool
    place: int
    alike: int
    own_share: float
    share: float
    cents: int | None
    intervals: tuple[Between, ...]
    draw_intervals: tuple[Between, ...]
    share_intervals: tuple[Between, ...]
    verdict: Verdict = Verdict("accept", "nobody judged it")

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the contribution about every kind of luck."""
        return (self.intervals[-1].low, self.intervals[-1].high) if self.intervals else None

    @property
    def may_be_nothing(self) -> bool:
        """Whether the interval of what it contributed includes 0."""
        ends = self.interval
        return ends is not None and self.contribution != 0 and ends[0] <= 0 <= ends[1]

    @property
    def replies(self) -> int:
        """How many came."""
        return self.taken_part + self.refused
