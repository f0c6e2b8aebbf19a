"""Quarantine: members whose updates raise the loss again and again are left out for a while."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedif_flower.attribution.callback import PathAttribution
from fedif_flower.attribution.records import RoundAttribution
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.server.roster import NodeDirectory
from fedif_flower.server.run import Callback, RunningStrategy

logger = logging.getLogger(__name__)

LEAST_LOOKS = 4  # Rounds that a member took part in since it was last judged.
LONGEST_MEMORY = 8  # Of these rounds, the last.
LEAST_MEMBERS = 5  # Fewer cannot show what is usual.
CONFIDENCE = 0.95
UNUSUAL = 5.0  # In robust standard deviations below the members' median.
LONGEST_COUNT = 32  # Rounds among which bad ones are counted, the last.
LEAST_BAD = 3
HONEST_BAD = 0.02  # Of an honest member's rounds; 0 to 2 % where it was measured.
CHANCE = 0.0001  # Members are judged hundreds of times in a run.
FIRST_PAUSE = 4  # Turns; it doubles from one quarantine to the next.
LONGEST_PAUSE = 64


@dataclass(frozen=True)
class Decision:
    """A member is not drawn from one round until before another, and why.

    Attributes
    ----------
    server_round, until_round : int
        The first round without it, and the first in which it may be drawn again.
    partition_id, client_id : int
        Who.
    reason : str
        With its figures.
    """

    server_round: int
    until_round: int
    partition_id: int
    client_id: int
    reason: str


@dataclass
class _Member:
    # One for each round since the last look, at most so many.
    worths: deque[float] = field(default_factory=lambda: deque(maxlen=LONGEST_MEMORY))
    bad: deque[bool] = field(default_factory=lambda: deque(maxlen=LONGEST_COUNT))
    pause: int = FIRST_PAUSE  # Of the next quarantine, in turns.
    until_round: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Return everything in lists and numbers."""
        return {
            "worths": list(self.worths),
            "bad": list(self.bad),
            "pause": self.pause,
            "until_round": self.until_round,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Member:
        """Return what :meth:`state_dict` was made of."""
        member = cls(pause=int(state["pause"]), until_round=int(state["until_round"]))
        member.worths.extend(state["worths"])
        member.bad.extend(state["bad"])
        return member


class Quarantine(Callback):
    r"""Leaves out members that raise the loss on average, or in too many of their rounds.

    In a round of m clients a member's worth is what a unit of its update did to the loss,

    .. math:: x_i = \frac{c_i / a_i}{\frac{1}{m} \sum_j |c_j / a_j|},

    with :math:`c_i` what its update of this round contributed and :math:`a_i > 0` the coefficient
    that this was given; so the weights of the strategy neither hide nor excuse anybody, nor does
    what a server's momentum carries on of earlier updates. A member is quarantined, on average,
    once both hold for the mean of :math:`x_i` over the last :data:`LONGEST_MEMORY` rounds that it
    took part in, at least :data:`LEAST_LOOKS`:

    - the upper end of its one-sided t interval (:data:`CONFIDENCE`) is below 0;
    - it lies more than :data:`UNUSUAL` robust standard deviations (1.4826 times the median of
      absolute deviations) below the median of all members' means: where a model has converged,
      the updates of honest members pull against each other, and many are a little below 0.

    Who behaves badly now and then has a good mean, so bad rounds are counted too. A round is bad
    for a member where :math:`x_i < 0` and :math:`x_i` lies more than :data:`UNUSUAL` robust
    standard deviations below the round's median, the deviations being those of the half above it:
    the half below may be attackers'. A member is quarantined, for its bad rounds, once b of its
    last n rounds, at most :data:`LONGEST_COUNT`, were bad, b is at least :data:`LEAST_BAD`, and an
    honest member has so many by a chance below :data:`CHANCE`,
    :math:`P(B_{n,q} \ge b) <` :data:`CHANCE`, with B binomial and q = :data:`HONEST_BAD`.

    It is then not drawn for :data:`FIRST_PAUSE` of its turns, twice as many the next time, at most
    :data:`LONGEST_PAUSE`. Afterwards it is judged anew by what it sends from then on: everybody can
    come back. A turn is the number of rounds in which a member has weight once on average: the
    members that could be drawn, over those with :math:`a_i > 0`. Nobody is judged while fewer than
    :data:`LEAST_MEMBERS` members have had so many rounds; a round with fewer has no bad ones.

    Parameters
    ----------
    attribution : PathAttribution
        Among the callbacks of the same strategy. Round t is judged by what is attributed of the
        rounds up to t - 2: the round before is still being attributed when clients are drawn.
    on_decision : callable, optional
        Called with each :class:`Decision`.

    Attributes
    ----------
    decisions : list of Decision
        So far.
    """

    def __init__(
        self,
        attribution: PathAttribution,
        on_decision: Callable[[Decision], object] | None = None,
    ) -> None:
        self.attribution = attribution
        self.decisions: list[Decision] = []
        self._on_decision = on_decision
        self._members: dict[int, _Member] = {}
        self._judged = 0  # Rounds taken in.
        self._nodes: NodeDirectory | None = None  # Before on_start.

    def on_start(self, strategy: RunningStrategy) -> None:
        """Note what members are called, and say from now on who may be drawn.

        Raises
        ------
        ConfigError
            If the strategy does not have the attribution by which members are judged.
        """
        if not any(callback is self.attribution for callback in strategy.callbacks):
            raise ConfigError(
                "Quarantine: its attribution is not among the strategy's callbacks, so that nobody "
                "would be judged; allowed: callbacks=[attribution, Quarantine(attribution)]"
            )
        self._nodes = strategy.nodes
        strategy.roster.admit.append(self.admit)

    def on_end(self) -> None:
        """Tell the log where too few members took part for any to be judged."""
        num_members = len(self._members)
        if 0 < num_members < LEAST_MEMBERS:
            logger.warning(
                "quarantine judged nobody: %d members took part, and fewer than %d do not show "
                "what is usual",
                num_members,
                LEAST_MEMBERS,
            )

    def admit(self, nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
        """Return the nodes that are not quarantined in this round."""
        rounds = self.attribution.rounds
        while self._judged < len(rounds) and rounds[self._judged].server_round <= server_round - 2:
            self._take_in(rounds[self._judged], num_nodes=len(nodes))
            self._judged += 1
        until = {client_id: member.until_round for client_id, member in self._members.items()}
        return [node for node in nodes if until.get(node.client_id, 0) <= server_round]

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on: how long a turn was is not known afterwards."""
        members = {}
        for client_id, member in self._members.items():
            members[client_id] = member.state_dict()
        return {
            "judged": self._judged,
            "members": members,
            "decisions": [asdict(decision) for decision in self.decisions],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned; nobody is told of its decisions again."""
        members = {}
        for client_id, member in state["members"].items():
            members[int(client_id)] = _Member.from_state(member)
        decisions = [Decision(**decision) for decision in state["decisions"]]
        self._judged = int(state["judged"])
        self._members = members
        self.decisions = decisions

    def _take_in(self, attributed: RoundAttribution, num_nodes: int) -> None:
        """Note what a round's members are worth, and leave out whoever is to be."""
        worths = relative_worths(attributed)
        self._note_worths(attributed, worths)
        means = self._mean_worths()
        if len(means) < LEAST_MEMBERS:
            return
        everyone = np.array(list(means.values()))
        median = float(np.median(everyone))
        spread = 1.4826 * float(np.median(np.abs(everyone - median)))
        turn = math.ceil(num_nodes / max(len(worths), 1))  # In rounds.
        for client in attributed.clients:
            client_id = client.client_id
            if client_id not in worths or client_id not in means:
                continue
            member = self._members[client_id]
            reason = _bad_on_average(member, means[client_id], median, spread)
            reason = reason or _bad_too_often(member)
            if not reason:
                continue
            first = attributed.server_round + 2
            until = first + turn * member.pause
            pause = min(2 * member.pause, LONGEST_PAUSE)
            self._members[client_id] = _Member(pause=pause, until_round=until)
            self._tell(Decision(first, until, client.partition_id, client_id, reason))

    def _note_worths(self, attributed: RoundAttribution, worths: Mapping[int, float]) -> None:
        """Note what the members of a round were worth in it, and for whom it was bad."""
        bad = far_worse(worths)
        for client_id, worth in worths.items():
            member = self._members.setdefault(client_id, _Member())
            # What was on its way when the quarantine began is no news.
            if attributed.server_round >= member.until_round:
                member.worths.append(worth)
                member.bad.append(client_id in bad)

    def _mean_worths(self) -> dict[int, float]:
        """Return the mean worth of each member that has had rounds enough to be judged."""
        return {
            client_id: float(np.mean(member.worths))
            for client_id, member in self._members.items()
            if len(member.worths) >= LEAST_LOOKS
        }

    def _tell(self, decision: Decision) -> None:
        """Log a decision, and tell whoever listens."""
        who = "a member"
        if self._nodes is not None:
            who = self._nodes.labels([decision.client_id])[decision.client_id]
        logger.info("%s is left out until round %d: %s", who, decision.until_round, decision.reason)
        self.decisions.append(decision)
        if self._on_decision is not None:
            self._on_decision(decision)


def _bad_on_average(member: _Member, mean: float, median: float, spread: float) -> str:
    """Return why a member is left out for the mean of its worths; empty: it is not."""
    upper = upper_bound(member.worths)
    if upper >= 0 or mean >= median - UNUSUAL * spread:
        return ""
    return (
        f"worth {mean:.2f} on average of {len(member.worths)} rounds, at most "
        f"{upper:.2f} at {CONFIDENCE:.0%} confidence; usual is {median:.2f}"
    )


def _bad_too_often(member: _Member) -> str:
    """Return why a member is left out for its bad rounds; empty: it is not."""
    count = sum(member.bad)
    rounds = len(member.bad)
    if count < LEAST_BAD:
        return ""
    chance = chance_of(count, rounds)
    if chance >= CHANCE:
        return ""
    return (
        f"{count} of its last {rounds} rounds were far worse than others'; an honest "
        f"member has so many by a chance of {chance:.1g}"
    )


def relative_worths(attributed: RoundAttribution) -> dict[int, float]:
    """Return what a unit of each client's update was worth, relative to the round's others."""
    units = {}
    for client in attributed.clients:
        if client.coefficient > 0:
            of_this_update = client.contribution - client.carried
            units[client.client_id] = of_this_update / client.coefficient
    if not units:
        return {}
    scale = float(np.mean(np.abs(list(units.values()))))
    if not scale:
        return {}
    return {client_id: unit / scale for client_id, unit in units.items()}


def far_worse(worths: Mapping[int, float]) -> set[int]:
    """Return the clients whose update of a round was far worse than others', and harmful."""
    if len(worths) < LEAST_MEMBERS:
        return set()
    everyone = np.array(list(worths.values()))
    median = float(np.median(everyone))
    spread = 1.4826 * float(np.median((everyone - median)[everyone >= median]))
    least_usual = min(0.0, median - UNUSUAL * spread)
    return {client_id for client_id, worth in worths.items() if worth < least_usual}


def chance_of(count: int, rounds: int) -> float:
    """Return the probability that an honest member has at least so many bad rounds, count >= 1."""
    from scipy.special import bdtrc

    return float(bdtrc(count - 1, rounds, HONEST_BAD))


def upper_bound(values: Sequence[float]) -> float:
    """Return the upper end of the mean's one-sided t interval at :data:`CONFIDENCE`; n >= 2."""
    # Imported here: every server loads this file, few have a quarantine.
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, CONFIDENCE))
    return float(np.mean(values) + quantile * np.std(values, ddof=1) / math.sqrt(len(values)))
