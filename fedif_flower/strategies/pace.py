"""How long a round waits, and what becomes of replies that come after it closed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from flwr.serverapp import Grid

from fedif_flower.errors import require
from fedif_flower.messages.polling_grid import Closing
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.messages.screening import Asked, Screening
from fedif_flower.sections import CheckedFields
from fedif_flower.settings import Setting
from fedif_flower.strategies.callbacks import Callback


def inverse_root(rounds: int) -> float:
    r"""Return :math:`1 / \sqrt{1 + s}`, what FedBuff counts an update of s rounds ago for."""
    return 1.0 / math.sqrt(1.0 + rounds)


@dataclass(frozen=True)
class Pace(CheckedFields):
    """When a round closes, and for how long late replies count.

    A late reply enters the round in which it comes. It is screened against the model that it was
    trained on, and its update is multiplied by ``staleness`` of the rounds between: scores, steps
    and contributions are those of what it became. A member is not asked anew while its reply is
    waited for.

    Parameters
    ----------
    quorum : float
        A round closes with so many usable replies: from 1 on a number, below 1 a share of the
        members that are asked or still at work; 0: all that are asked are waited for.
    grace : float
        Seconds for which a round stays open once it has its quorum, >= 0.
    ask_more : float
        So many times as many members are drawn as ``fraction_train`` says, >= 1.
    late_rounds : int
        A reply counts if it comes at most so many rounds late; 0: what is late is lost.
    staleness : callable
        Takes rounds of delay >= 1, returns a factor in [0, 1].

    References
    ----------
    Nguyen et al., 2022 (Federated learning with buffered asynchronous aggregation).
    """

    quorum: Annotated[
        float,
        Setting(
            "a round closes with so many usable replies: from 1 on a number, below 1 a share of "
            "the members that are asked or still at work; 0: all that are asked are waited for",
            ge=0,
        ),
    ] = 0.0
    grace: Annotated[
        float,
        Setting("seconds for which a round stays open once it has its quorum", ge=0),
    ] = 0.0
    ask_more: Annotated[
        float,
        Setting("so many times as many members are asked as `fraction-train` says", ge=1),
    ] = 1.0
    late_rounds: Annotated[
        int,
        Setting(
            "a reply that comes at most so many rounds after its own still counts, less by "
            "1 / sqrt(1 + rounds); until then its member is not asked anew; 0: it is lost",
            ge=0,
        ),
    ] = 0
    staleness: Callable[[int], float] = inverse_root

    def __post_init__(self) -> None:
        """Raise ConfigError for what is out of range."""
        super().__post_init__()
        whole = self.quorum < 1 or self.quorum == int(self.quorum)
        require(whole, "quorum", self.quorum, "0, a share below 1, or a whole number")

    def closing(self, num_asked: int, awaited: Collection[int]) -> Closing:
        """Return when a round closes in which so many members are asked, beside those at work."""
        at_work = num_asked + len(awaited)
        share = math.ceil(self.quorum * at_work) if self.quorum < 1 else int(self.quorum)
        quorum = min(share, at_work) or None
        return Closing(quorum, self.grace, frozenset(awaited), keeps=self.late_rounds > 0)


DEFAULT_PACE = Pace()


class LateReplies(Callback):
    """Lets replies to earlier rounds count in the round in which they come.

    Parameters
    ----------
    pace : Pace
        For how long, and for how much.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._asked: dict[int, Asked] = {}

    def require(self, grid: Grid, local: object | None) -> None:
        """Raise ConfigError where late replies cannot come, or cannot be used."""
        late = self._pace.late_rounds
        can_come = isinstance(grid, ScreenedGrid) and grid.keeps_late
        require(can_come, "late_rounds", late, "0 in a simulation, whose replies are never late")
        words = "0 with a local method whose clients send more than a model"
        require(local is None, "late_rounds", late, words)

    def awaited(self, server_round: int) -> dict[int, Asked]:
        """Return, by node, whose replies still count in a round, and for how much."""
        ages = {node_id: server_round - one.server_round for node_id, one in self._asked.items()}
        self._asked = {
            i: self._asked[i] for i, age in ages.items() if age <= self._pace.late_rounds
        }
        staleness = self._pace.staleness
        return {i: replace(one, factor=staleness(ages[i])) for i, one in self._asked.items()}

    def on_screened(self, screening: Screening, asked: Mapping[int, Asked]) -> None:
        """Take in a round: who answered is free, who was asked and did not is waited for."""
        for accepted in screening.accepted:
            self._asked.pop(accepted.node.node_id, None)
        for refused in screening.refused:
            self._asked.pop(refused.node.node_id, None)
            if refused.status == "late":
                self._asked[refused.node.node_id] = asked[refused.node.node_id]
