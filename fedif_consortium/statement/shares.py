"""Which rounds count, each member's share, and its cents: sums that come out exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from fedif_consortium.statement.records import RoundLoss
from fedif_flower.attribution.gain import first_and_last_loss

NOTHING = Fraction(0)
MOST_REMAINDER = 0.5  # Of the fall: beyond that, contributions do not say where it came from.


def left_out_rounds(
    rounds: Sequence[RoundLoss], taken_back: Mapping[int, int] | None = None
) -> tuple[int, ...]:
    r"""Return the rounds that count for nobody, so that the contributions of the others add up.

    With :math:`\ell_0 \dots \ell_T` the losses, the run's fall is the one between its own ends,
    :math:`F = \ell_0 - \ell_T`. The rounds K that count have :math:`F_K`, the sum of their falls,
    and :math:`R_K`, the sum of their remainders. They count once

    .. math:: F_K > 0 \quad\text{and}\quad |R_K| \le F_K / 2.

    Until then the round of the largest remainder that still counts is left out, and with it its
    whole event (:func:`event_of`): the harm, and the recovery from it. A round without a finite
    loss is left out in any case, likewise. A step, the round that took it back and those between
    them are as one round here. Where :math:`F \le 0`, or no rounds ever count, none is left out:
    nobody is paid.

    What was left out changed the loss by :math:`F - F_K` on balance. So
    :math:`F = \sum c + R_K + (F - F_K)`: all that the run gained is told.

    Parameters
    ----------
    rounds : sequence of RoundLoss
        In their order, each from where the one before led.
    taken_back : mapping of int to int, optional
        By the number of a round, the earlier one whose step it took back. Default: none.
    """
    if not fall_of(rounds) > 0:
        return ()
    groups = _groups_of(rounds, taken_back or {})
    merged = [_merge(group) for group in groups]
    losses = losses_of(merged)
    left_out: set[int] = set()  # Places in ``merged``.
    for place, group in enumerate(groups):
        if _rounds_without_loss(group):
            left_out.update(event_of(place, losses))
    while len(left_out) < len(merged):
        counted = [place for place in range(len(merged)) if place not in left_out]
        if _adds_up([merged[place] for place in counted]):
            return _rounds_of(groups, left_out)
        remainders = [abs(merged[place].remainder) for place in counted]
        worst = counted[remainders.index(max(remainders))]
        left_out.update(event_of(worst, losses))
    return ()


def _rounds_of(groups: Sequence[Sequence[RoundLoss]], places: Iterable[int]) -> tuple[int, ...]:
    """Return the rounds of the groups at some places, in order."""
    rounds: list[int] = []
    for place in sorted(places):
        rounds += [row.round for row in groups[place]]
    return tuple(rounds)


def _groups_of(rounds: Sequence[RoundLoss], taken_back: Mapping[int, int]) -> list[list[RoundLoss]]:
    """Return the rounds in groups: from a step to where it was taken back, others by themselves."""
    undone_in = {earlier: later for later, earlier in taken_back.items()}
    groups: list[list[RoundLoss]] = []
    last = 0  # Round of the group.
    for row in rounds:
        if row.round > last:
            groups.append([])
        groups[-1].append(row)
        last = max(last, row.round, undone_in.get(row.round, 0))
    return groups


def _merge(group: Sequence[RoundLoss]) -> RoundLoss:
    """Return a group of rounds as one: from the loss before the first to that after the last."""
    return RoundLoss(
        round=group[0].round,
        loss_before=group[0].loss_before,
        loss_after=group[-1].loss_after,
        decrease=math.fsum(row.decrease for row in group),
        attributed=math.fsum(row.attributed for row in group),
        remainder=math.fsum(row.remainder for row in group),
    )


def event_of(place: int, losses: Sequence[float]) -> range:
    r"""Return the rounds that belong together with one, by their places.

    An event goes from the round in which the loss rises above a level to the one in which it is
    back at it, or to the end of the run. The level of round t is the last loss before it that was
    no higher than :math:`\max(\ell_t, \min_{s<t} \ell_s)`. So the event of a round

    - that raises the loss is that round, and those after it until the loss is where it was before;
    - that brings back what was lost begins with the round in which it was lost;
    - that goes lower than ever before, from where it was lowest, is the round alone.

    Parameters
    ----------
    place : int
        The round's, from 0: it leads from ``losses[place]`` to ``losses[place + 1]``.
    losses : sequence of float
        :math:`\ell_0 \dots \ell_T`; infinite where there is none.
    """
    reached = max(losses[place + 1], min(losses[: place + 1]))
    fell_at = _last_no_higher(losses, reached, place)
    level = losses[fell_at]
    back_at = _first_no_higher(losses, level, place + 1)
    return range(fell_at, back_at)


def _last_no_higher(losses: Sequence[float], most: float, place: int) -> int:
    """Return the last place up to one at which the loss is no higher; there is one."""
    while losses[place] > most:
        place -= 1
    return place


def _first_no_higher(losses: Sequence[float], most: float, place: int) -> int:
    """Return the first place from one on at which the loss is no higher, or the last of all."""
    while place < len(losses) - 1 and losses[place] > most:
        place += 1
    return place


def losses_of(rounds: Sequence[RoundLoss]) -> list[float]:
    """Return the loss before the first round and after each; infinite where it is not finite."""
    losses = [rounds[0].loss_before, *(row.loss_after for row in rounds)]
    return list(map(_finite_or_infinity, losses))


def _finite_or_infinity(loss: float) -> float:
    """Return a loss that is finite; of NaN and minus infinity, infinity."""
    if math.isfinite(loss):
        return loss
    return math.inf


def fall_of(rounds: Sequence[RoundLoss]) -> float:
    """Return by how much the loss fell between the ends of a run.

    The first loss is the first that is finite. A run that ends without a finite loss has fallen by
    minus infinity.
    """
    first, last = first_and_last_loss(losses_of(rounds))
    if first is None or last is None:
        return -math.inf
    return first - last


def _adds_up(rounds: Sequence[RoundLoss]) -> bool:
    """Tell whether the loss fell in these rounds, and the remainders are at most half of that.

    They do not where one has no finite loss: what it changed is in no fall.
    """
    if _rounds_without_loss(rounds):
        return False
    decrease = math.fsum(row.decrease for row in rounds)
    remainder = math.fsum(row.remainder for row in rounds)
    return decrease > 0 and abs(remainder) <= MOST_REMAINDER * decrease


def _rounds_without_loss(rounds: Sequence[RoundLoss]) -> list[int]:
    """Return the rounds that begin or end without a finite loss."""
    return [row.round for row in rounds if not _has_finite_losses(row)]


def _has_finite_losses(row: RoundLoss) -> bool:
    return math.isfinite(row.loss_before) and math.isfinite(row.loss_after)


def reason_against_shares(
    fall: float, rounds: Sequence[RoundLoss], credits: Sequence[float]
) -> str:
    """Return why a run gives nobody a share of what was gained; empty: it does.

    Parameters
    ----------
    fall : float
        By how much the validation loss fell between the run's ends.
    rounds : sequence of RoundLoss
        Those that count (see :func:`left_out_rounds`); all of them, where no rounds ever do.
    credits : sequence of float
        What members are credited with.
    """
    if fall == -math.inf:
        return "the model that it ended with has no finite validation loss: there is nothing gained"
    if not fall > 0:
        return "the validation loss did not fall: there is no gain to share"
    without_loss = _rounds_without_loss(rounds)
    if without_loss:
        return (
            f"round {without_loss[0]} has no finite validation loss, and without it and what "
            "belongs to it the contributions do not add up to a fall"
        )
    if not _adds_up(rounds):
        decrease = math.fsum(row.decrease for row in rounds)
        remainder = math.fsum(row.remainder for row in rounds)
        part = f"{remainder:.3g}"
        if decrease > 0:
            part = f"{abs(remainder) / decrease:.0%} of it"
        return (
            "the contributions do not add up to the fall of the validation loss: the remainder is "
            f"{part}"
        )
    if not any(value > 0 for value in credits):
        return "nobody is credited with anything above 0"
    return ""


def gain_shares(
    credits: Sequence[float | Fraction], gained: float | Fraction = NOTHING
) -> list[Fraction]:
    """Return each credit's exact share of the positive ones, or of ``gained`` if that is more.

    All are 0 if none is positive.
    """
    positive = [Fraction(max(value, 0.0)) for value in credits]
    if not any(positive):
        return [NOTHING] * len(positive)
    whole = max(sum(positive, NOTHING), Fraction(gained))
    return [value / whole for value in positive]


def alike_shares(shares: Sequence[Fraction], groups: Iterable[Sequence[int]]) -> list[Fraction]:
    """Return the shares with each group's part of them divided equally among it."""
    alike = list(shares)
    for group in groups:
        equal_part = sum((shares[i] for i in group), NOTHING) / len(group)
        for i in group:
            alike[i] = equal_part
    return alike


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
