"""Which rounds count, the members' shares, and their cents; shares and cents add up exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from fedif_consortium.statement.records import RoundLoss
from fedif_flower.attribution.gain import first_and_last_loss

NOTHING = Fraction(0)
# The largest remainder, in parts of the fall, with which contributions still explain the fall.
MOST_REMAINDER = 0.5


def left_out_rounds(
    rounds: Sequence[RoundLoss], taken_back: Mapping[int, int] | None = None
) -> tuple[int, ...]:
    r"""Return the rounds that count for nobody, so that the contributions to the others add up.

    Let :math:`\ell_0 \dots \ell_T` be the losses, and :math:`F = \ell_0 - \ell_T` the fall of the
    run. For a set K of rounds, let :math:`F_K` be the sum of their falls, and :math:`R_K` the sum
    of their remainders. The contributions to K add up if

    .. math:: F_K > 0 \quad\text{and}\quad |R_K| \le F_K / 2.

    At first K has all rounds but those without a finite loss. As long as K does not add up, the
    round with the largest remainder is taken out of it. Every round that is left out is left out
    with its whole event (:func:`event_of`): a harm and the recovery from it. A step, the round that
    took it back and the rounds between them are treated as one round.

    If :math:`F \le 0`, or no K adds up, no round is left out, and nobody is paid.

    The rounds left out changed the loss by :math:`F - F_K` on balance. So the account of the whole
    run is :math:`F = \sum c + R_K + (F - F_K)`, with the sum over all contributions to K.

    Parameters
    ----------
    rounds : sequence of RoundLoss
        All rounds in order; each begins with the model that the round before it led to.
    taken_back : mapping of int to int, optional
        The round whose step was taken back, by the round that took it back; default: none.

    Returns
    -------
    tuple of int
        The numbers of the rounds left out, in order.
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
    """Return the numbers of the rounds in the groups at some places, in order."""
    rounds: list[int] = []
    for place in sorted(places):
        rounds += [row.round for row in groups[place]]
    return tuple(rounds)


def _groups_of(rounds: Sequence[RoundLoss], taken_back: Mapping[int, int]) -> list[list[RoundLoss]]:
    """Return the rounds in groups: those from a step to where it was taken back, others alone."""
    undone_in = {earlier: later for later, earlier in taken_back.items()}
    groups: list[list[RoundLoss]] = []
    last = 0  # The last round that belongs to the present group.
    for row in rounds:
        if row.round > last:
            groups.append([])
        groups[-1].append(row)
        last = max(last, row.round, undone_in.get(row.round, 0))
    return groups


def _merge(group: Sequence[RoundLoss]) -> RoundLoss:
    """Return a group of rounds as one round, from the loss before it to the loss after it."""
    return RoundLoss(
        round=group[0].round,
        loss_before=group[0].loss_before,
        loss_after=group[-1].loss_after,
        decrease=math.fsum(row.decrease for row in group),
        attributed=math.fsum(row.attributed for row in group),
        remainder=math.fsum(row.remainder for row in group),
    )


def event_of(place: int, losses: Sequence[float]) -> range:
    r"""Return the places of the rounds that make up the event of one round.

    An event begins with the round in which the loss rises above a level. It ends with the round in
    which the loss is back at that level, or with the run. The level of round t is the last loss
    before it that was no higher than :math:`\max(\ell_t, \min_{s<t} \ell_s)`. So the event of a
    round

    - that raises the loss is that round and those after it, until the loss is as low as before;
    - that makes good an earlier rise begins with the round of that rise;
    - that goes from the lowest loss so far to a lower one is that round alone.

    Parameters
    ----------
    place : int
        The place of the round, from 0: it leads from ``losses[place]`` to ``losses[place + 1]``.
    losses : sequence of float
        :math:`\ell_0 \dots \ell_T`; infinite where a loss is not finite.
    """
    reached = max(losses[place + 1], min(losses[: place + 1]))
    fell_at = _last_no_higher(losses, reached, place)
    level = losses[fell_at]
    back_at = _first_no_higher(losses, level, place + 1)
    return range(fell_at, back_at)


def _last_no_higher(losses: Sequence[float], most: float, place: int) -> int:
    """Return the last place up to ``place`` at which the loss is at most ``most``; there is one."""
    while losses[place] > most:
        place -= 1
    return place


def _first_no_higher(losses: Sequence[float], most: float, place: int) -> int:
    """Return the first place from ``place`` on with a loss of at most ``most``, or the last one."""
    while place < len(losses) - 1 and losses[place] > most:
        place += 1
    return place


def losses_of(rounds: Sequence[RoundLoss]) -> list[float]:
    """Return the loss before the first round and after each round; infinity if it is not finite."""
    losses = [rounds[0].loss_before, *(row.loss_after for row in rounds)]
    return list(map(_finite_or_infinity, losses))


def _finite_or_infinity(loss: float) -> float:
    """Return a finite loss as it is, and infinity for any other."""
    if math.isfinite(loss):
        return loss
    return math.inf


def fall_of(rounds: Sequence[RoundLoss]) -> float:
    """Return how much the loss fell from the first finite loss to the end of a run.

    It is minus infinity if the run ends without a finite loss.
    """
    first, last = first_and_last_loss(losses_of(rounds))
    if first is None or last is None:
        return -math.inf
    return first - last


def _adds_up(rounds: Sequence[RoundLoss]) -> bool:
    """Return whether the loss fell in these rounds, and the remainder is at most half of the fall.

    It is false if a round has no finite loss: no fall has what that round changed.
    """
    if _rounds_without_loss(rounds):
        return False
    decrease = math.fsum(row.decrease for row in rounds)
    remainder = math.fsum(row.remainder for row in rounds)
    return decrease > 0 and abs(remainder) <= MOST_REMAINDER * decrease


def _rounds_without_loss(rounds: Sequence[RoundLoss]) -> list[int]:
    """Return the numbers of the rounds that begin or end without a finite loss."""
    return [row.round for row in rounds if not _has_finite_losses(row)]


def _has_finite_losses(row: RoundLoss) -> bool:
    return math.isfinite(row.loss_before) and math.isfinite(row.loss_after)


def reason_against_shares(
    fall: float, rounds: Sequence[RoundLoss], credits: Sequence[float]
) -> str:
    """Return why nobody gets a share of what a run gained; empty: members get shares.

    Parameters
    ----------
    fall : float
        How much the validation loss fell between the run's ends.
    rounds : sequence of RoundLoss
        The rounds that count (see :func:`left_out_rounds`); all rounds if no set of them adds up.
    credits : sequence of float
        The members' credits.
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
    """Return each credit's exact share of the sum of positive credits, or of ``gained`` if larger.

    A credit that is not positive has the share 0.
    """
    positive = [Fraction(max(value, 0.0)) for value in credits]
    if not any(positive):
        return [NOTHING] * len(positive)
    whole = max(sum(positive, NOTHING), Fraction(gained))
    return [value / whole for value in positive]


def alike_shares(shares: Sequence[Fraction], groups: Iterable[Sequence[int]]) -> list[Fraction]:
    """Return the shares after each group's shares are divided equally among its members.

    ``groups`` have the positions of their members.
    """
    alike = list(shares)
    for group in groups:
        equal_part = sum((shares[i] for i in group), NOTHING) / len(group)
        for i in group:
            alike[i] = equal_part
    return alike


def share_out(cents: int, shares: Sequence[Fraction]) -> list[int]:
    """Return whole cents for shares that sum to 1; they add up to ``cents`` (largest remainder).

    Everybody gets the exact amount rounded down. The cents left over go, one each, to those who
    lost the largest fractions by rounding; of equal fractions the first goes first. If all shares
    are 0, nobody is paid.
    """
    if not any(shares):
        return [0] * len(shares)
    exact = [cents * share for share in shares]
    paid = [int(value) for value in exact]
    by_fraction = sorted(range(len(shares)), key=lambda i: (paid[i] - exact[i], i))
    for i in by_fraction[: cents - sum(paid)]:
        paid[i] += 1
    return paid
