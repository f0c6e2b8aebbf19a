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

LEAST_ROUNDS = 4  # A member is judged after so many rounds (since its last quarantine).
ROUNDS_AVERAGED = 8  # Its mean worth is taken over at most so many of its last rounds.
LEAST_MEMBERS = 5  # Members are compared with each other: fewer do not show which worth is usual.
CONFIDENCE = 0.95
UNUSUAL = 5.0  # In robust standard deviations below the members' median.
ROUNDS_COUNTED = 32  # Bad rounds are counted among at most so many of a member's last rounds.
LEAST_BAD_ROUNDS = 3  # A member with fewer bad rounds is not left out for them.
HONEST_BAD_RATE = 0.02  # Part of an honest member's rounds that are bad; 0 to 2 % was measured.
SIGNIFICANCE = 0.0001  # Small, since members are judged hundreds of times in a run.
FIRST_PAUSE = 4  # In turns; the pause doubles with each quarantine of the member.
LONGEST_PAUSE = 64  # In turns.


@dataclass(frozen=True)
class Decision:
    """The decision to leave a member out for some rounds, and the reason.

    Attributes
    ----------
    server_round, until_round : int
        The first round without the member, and the first in which it may be drawn again.
    partition_id, client_id : int
        The member.
    reason : str
        Why, with the figures that led to the decision.
    """

    server_round: int
    until_round: int
    partition_id: int
    client_id: int
    reason: str


@dataclass
class _Member:
    """What is known of a member from its rounds since its last quarantine."""

    # What its update was worth in each of its last rounds, and whether that round was bad.
    worths: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_AVERAGED))
    bad: deque[bool] = field(default_factory=lambda: deque(maxlen=ROUNDS_COUNTED))
    pause: int = FIRST_PAUSE  # The length of the next quarantine, in turns.
    until_round: int = 0  # The first round after the last quarantine; 0: there was none.

    def state_dict(self) -> dict[str, Any]:
        """Return everything as lists and numbers, for a checkpoint."""
        return {
            "worths": list(self.worths),
            "bad": list(self.bad),
            "pause": self.pause,
            "until_round": self.until_round,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Member:
        """Return a member made from what :meth:`state_dict` returned."""
        member = cls(pause=int(state["pause"]), until_round=int(state["until_round"]))
        member.worths.extend(state["worths"])
        member.bad.extend(state["bad"])
        return member


class Quarantine(Callback):
    r"""Leaves out members that raise the loss on average, or in too many of their rounds.

    In a round, a member's *worth* is what a unit of its update did for the loss, relative to the
    mean size of this figure over the round's m clients:

    .. math:: x_i = \frac{c_i / a_i}{\frac{1}{m} \sum_j |c_j / a_j|},

    with :math:`c_i` the contribution of the update that it sent in this round and :math:`a_i > 0`
    the coefficient that the update was multiplied by; clients with another coefficient are not
    among the m. So a worth depends neither on the strategy's weights nor on earlier updates that a
    server's momentum carries on.

    **On average.** A member is quarantined if both hold for the mean of its :math:`x_i` over its
    last :data:`ROUNDS_AVERAGED` rounds, at least :data:`LEAST_ROUNDS`:

    - the upper end of the mean's one-sided t interval (:data:`CONFIDENCE`) is below 0;
    - the mean is more than :data:`UNUSUAL` robust standard deviations (1.4826 times the median
      absolute deviation) below the median of all members' means. Once a model has converged, the
      updates of honest members pull against each other, and many means are a little below 0.

    **For bad rounds.** A member that behaves badly now and then has a good mean, so bad rounds are
    counted as well. A round is bad for a member if :math:`x_i < 0` and :math:`x_i` is more than
    :data:`UNUSUAL` robust standard deviations below the round's median. These deviations are those
    of the clients above the median, since those below it may be attackers. A member is quarantined
    if b of its last n rounds were bad (n at most :data:`ROUNDS_COUNTED`), b is at least
    :data:`LEAST_BAD_ROUNDS`, and an honest member would have so many by chance with a probability
    below :data:`SIGNIFICANCE`: :math:`P(B_{n,q} \ge b) <` :data:`SIGNIFICANCE`, with
    :math:`B_{n,q}` a binomial variable and q = :data:`HONEST_BAD_RATE`.

    A quarantined member is not drawn for :data:`FIRST_PAUSE` turns, and for twice as many with each
    new quarantine, up to :data:`LONGEST_PAUSE`. A turn is the number of rounds in which a member
    has weight once on average: the number of members that could be drawn, divided by the number of
    those with :math:`a_i > 0`. After the quarantine the member is judged by its later updates
    alone, so that everybody can come back.

    Nobody is judged while fewer than :data:`LEAST_MEMBERS` members have had :data:`LEAST_ROUNDS`
    rounds. A round with fewer than :data:`LEAST_MEMBERS` clients that count is bad for nobody.

    Parameters
    ----------
    attribution : PathAttribution
        The attribution among the callbacks of the same strategy. When clients of round t are drawn,
        the rounds up to t - 2 count: round t - 1 is still being attributed at that time.
    on_decision : callable, optional
        Called with each :class:`Decision`.

    Attributes
    ----------
    decisions : list of Decision
        The decisions so far.
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
        self._judged = 0  # How many of the attribution's rounds were taken in.
        self._nodes: NodeDirectory | None = None  # None until on_start.

    def on_start(self, strategy: RunningStrategy) -> None:
        """Check that the strategy has the attribution; decide from now on who may be drawn.

        Raises
        ------
        ConfigError
            If the attribution is not among the strategy's callbacks.
        """
        if not any(callback is self.attribution for callback in strategy.callbacks):
            raise ConfigError(
                "Quarantine: its attribution is not among the strategy's callbacks, so that nobody "
                "would be judged; allowed: callbacks=[attribution, Quarantine(attribution)]"
            )
        self._nodes = strategy.nodes
        strategy.roster.admit.append(self.admit)

    def on_end(self) -> None:
        """Log a warning if too few members took part for anybody to be judged."""
        num_members = len(self._members)
        if 0 < num_members < LEAST_MEMBERS:
            logger.warning(
                "quarantine judged nobody: it compares members with each other, which takes at "
                "least %d; %d took part",
                LEAST_MEMBERS,
                num_members,
            )

    def admit(self, nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
        """Return the nodes that are not quarantined in a round.

        Rounds that have been attributed since the last call are taken in first.
        """
        rounds = self.attribution.rounds
        while self._judged < len(rounds) and rounds[self._judged].server_round <= server_round - 2:
            self._judge_round(rounds[self._judged], num_nodes=len(nodes))
            self._judged += 1
        until = {client_id: member.until_round for client_id, member in self._members.items()}
        return [node for node in nodes if until.get(node.client_id, 0) <= server_round]

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on.

        It cannot be computed again from the attributed rounds: the length of a turn depends on how
        many members could be drawn at that time.
        """
        members = {}
        for client_id, member in self._members.items():
            members[client_id] = member.state_dict()
        return {
            "judged": self._judged,
            "members": members,
            "decisions": [asdict(decision) for decision in self.decisions],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned; ``on_decision`` is not called again."""
        members = {}
        for client_id, member in state["members"].items():
            members[int(client_id)] = _Member.from_state(member)
        decisions = [Decision(**decision) for decision in state["decisions"]]
        self._judged = int(state["judged"])
        self._members = members
        self.decisions = decisions

    def _judge_round(self, attributed: RoundAttribution, num_nodes: int) -> None:
        """Note what members were worth in a round, and quarantine those that are to be left out.

        Parameters
        ----------
        attributed : RoundAttribution
            The round.
        num_nodes : int
            The number of members that could be drawn.
        """
        worths = relative_worths(attributed)
        self._note_worths(attributed, worths)
        means = self._mean_worths()
        if len(means) < LEAST_MEMBERS:
            return
        all_means = np.array(list(means.values()))
        median = float(np.median(all_means))
        spread = 1.4826 * float(np.median(np.abs(all_means - median)))
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
            first = attributed.server_round + 2  # The next round has been drawn already.
            until = first + turn * member.pause
            pause = min(2 * member.pause, LONGEST_PAUSE)
            # Its rounds so far are forgotten: it is judged by later ones.
            self._members[client_id] = _Member(pause=pause, until_round=until)
            self._tell(Decision(first, until, client.partition_id, client_id, reason))

    def _note_worths(self, attributed: RoundAttribution, worths: Mapping[int, float]) -> None:
        """Note what each member was worth in a round, and whether the round was bad for it."""
        bad = far_worse(worths)
        for client_id, worth in worths.items():
            member = self._members.setdefault(client_id, _Member())
            # Updates that were on their way when the quarantine began do not count again.
            if attributed.server_round >= member.until_round:
                member.worths.append(worth)
                member.bad.append(client_id in bad)

    def _mean_worths(self) -> dict[int, float]:
        """Return the mean worth of each member with at least :data:`LEAST_ROUNDS` rounds, by id."""
        return {
            client_id: float(np.mean(member.worths))
            for client_id, member in self._members.items()
            if len(member.worths) >= LEAST_ROUNDS
        }

    def _tell(self, decision: Decision) -> None:
        """Log a decision, store it and pass it to ``on_decision``."""
        label = "a member"
        if self._nodes is not None:
            label = self._nodes.labels([decision.client_id])[decision.client_id]
        logger.info(
            "%s is left out until round %d: %s", label, decision.until_round, decision.reason
        )
        self.decisions.append(decision)
        if self._on_decision is not None:
            self._on_decision(decision)


def _bad_on_average(member: _Member, mean: float, median: float, spread: float) -> str:
    """Return why a member is left out for its mean worth; empty: it is not.

    Parameters
    ----------
    member : _Member
        The member.
    mean : float
        Its mean worth.
    median, spread : float
        The median of all members' means, and the robust standard deviation around it.
    """
    upper = upper_bound(member.worths)
    if upper >= 0 or mean >= median - UNUSUAL * spread:
        return ""
    return (
        f"its updates raised the loss on average of {len(member.worths)} rounds: worth {mean:.2f} "
        f"(at most {upper:.2f} with {CONFIDENCE:.0%} confidence), where {median:.2f} is usual"
    )


def _bad_too_often(member: _Member) -> str:
    """Return why a member is left out for its bad rounds; empty: it is not."""
    count = sum(member.bad)
    rounds = len(member.bad)
    if count < LEAST_BAD_ROUNDS:
        return ""
    chance = chance_of(count, rounds)
    if chance >= SIGNIFICANCE:
        return ""
    return (
        f"{count} of its last {rounds} rounds were far worse than others'; an honest "
        f"member has so many by a chance of {chance:.1g}"
    )


def relative_worths(attributed: RoundAttribution) -> dict[int, float]:
    """Return each client's worth in a round, by client id (see :class:`Quarantine`).

    Clients without a positive coefficient are left out. Empty where every contribution is 0.
    """
    by_unit = {}  # What a unit of each client's update contributed.
    for client in attributed.clients:
        if client.coefficient > 0:
            # Without what its earlier updates contributed.
            contributed = client.contribution - client.carried
            by_unit[client.client_id] = contributed / client.coefficient
    if not by_unit:
        return {}
    scale = float(np.mean(np.abs(list(by_unit.values()))))
    if not scale:
        return {}
    return {client_id: worth / scale for client_id, worth in by_unit.items()}


def far_worse(worths: Mapping[int, float]) -> set[int]:
    """Return the clients for which a round was bad: their updates did harm, far beyond others'."""
    if len(worths) < LEAST_MEMBERS:
        return set()
    all_worths = np.array(list(worths.values()))
    median = float(np.median(all_worths))
    # Only deviations above the median: the clients below it may be attackers.
    spread = 1.4826 * float(np.median((all_worths - median)[all_worths >= median]))
    least_usual = min(0.0, median - UNUSUAL * spread)
    return {client_id for client_id, worth in worths.items() if worth < least_usual}


def chance_of(count: int, rounds: int) -> float:
    """Return the probability that an honest member has ``count`` >= 1 or more bad rounds."""
    from scipy.special import bdtrc

    return float(bdtrc(count - 1, rounds, HONEST_BAD_RATE))


def upper_bound(values: Sequence[float]) -> float:
    """Return the upper end of the mean's one-sided t interval, for two or more values."""
    # Imported here, since every server loads this file, but few have a quarantine.
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, CONFIDENCE))
    return float(np.mean(values) + quantile * np.std(values, ddof=1) / math.sqrt(len(values)))
