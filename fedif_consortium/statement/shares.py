"""Which rounds count, each member's share, and its cents: sums that come out exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from fedif_consortium.statement.records import RoundLoss

NOTHING = Fraction(0)
MOST_REMAINDER = 0.5  # Of the fall: beyond that, contributions do not say where it came from.


def left_out_rounds(rounds: Sequence[RoundLoss]) -> tuple[int, ...]:
    """Return the rounds without which the contributions add up to the fall of the loss.

    Where the remainders come to more than half of the fall, the round of the largest remainder is
    left out, and with it those after it that only bring the loss back to what it was before; then
    the next one, until the others add up. Where they never do, none is left out: nobody is paid.

    Parameters
    ----------
    rounds : sequence of RoundLoss
        In their order.
    """
    left = list(rounds)
    while left and not _adds_up(left):
        worst = max(left, key=lambda row: abs(row.remainder))
        start = rounds.index(worst)
        end = start + 1
        while end < len(rounds) and not rounds[end - 1].loss_after <= worst.loss_before:
            end += 1
        gone = {row.round for row in rounds[start:end]}
        left = [row for row in left if row.round not in gone]
    kept = {row.round for row in left}
    return tuple(row.round for row in rounds if row.round not in kept) if left else ()


def _adds_up(rounds: Sequence[RoundLoss]) -> bool:
    """Tell whether the remainders come to at most half of the fall; a rise has nothing to share."""
    decrease = math.fsum(row.decrease for row in rounds)
    remainder = math.fsum(row.remainder for row in rounds)
    return decrease <= 0 or abs(remainder) <= MOST_REMAINDER * decrease


def reason_against_shares(decrease: float, remainder: float, contributions: Sequence[float]) -> str:
    """Return why a run gives nobody a share of what was gained; empty: it does.

    Parameters
    ----------
    decrease, remainder : float
        By how much the validation loss fell, and what of that is nobody's.
    contributions : sequence of float
        The members'.
    """
    if not decrease > 0:
        return "the validation loss did not fall: there is no gain to share"
    if not abs(remainder) <= MOST_REMAINDER * decrease:
        return (
            "the contributions do not add up to the fall of the validation loss: the remainder is "
            f"{abs(remainder) / decrease:.0%} of it"
        )
    return "" if any(value > 0 for value in contributions) else "nobody contributed"


def gain_shares(
    credits: Sequence[float | Fraction], gained: float | Fraction = NOTHING
) -> list[Fraction]:
    """Return each credit's exact share of the positive ones, or of ``gained`` if that is more.

    All are 0 if none is positive.
    """
    positive = [Fraction(max(value, 0.0)) for value in credits]
    whole = max(sum(positive, NOTHING), Fraction(gained))
    return [value / whole if any(positive) else NOTHING for value in positive]


def alike_shares(shares: Sequence[Fraction], groups: Iterable[Sequence[int]]) -> list[Fraction]:
    """Return the shares with each group's part of them divided equally among it."""
    found = list(shares)
    for group in groups:
        part = sum((shares[i] for i in group), NOTHING) / len(group)
        found = [part if i in group else own for i, own in enumerate(found)]
    return found


def share_out(cents: int, shares: Sequence[Fraction]) -> list[int]:
    """Return whole cents by share, which add up to ``cents`` (largest remainder).

    Every member gets its share rounded down; the cents left over go, one each, to the largest
    fractions, the first of equal ones first. Where all shares are 0, nobody is paid.
    """
    if not any(shares):
        return [0] * len(shares)
    exact = [cents * share for share in shares]
    paid = [int(value) for value in exact]
    by_fraction = sorted(range(len(shares)), key=lambda i: (paid[i] - exact[i], i))
    for i in by_fraction[: cents - sum(paid)]:
        paid[i] += 1
    return paid
