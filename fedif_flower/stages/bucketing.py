"""Bucketing: the updates of random groups of clients are replaced by each group's mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch

from fedif_flower.aggregators.small_rounds import SmallRounds
from fedif_flower.combining import largest_counters
from fedif_flower.errors import require
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import Setting
from fedif_flower.stages.stage import Stage


@dataclass(eq=False)
class Bucketing(Stage):
    r"""Replaces the round's m updates by the means of :math:`\lceil m / s \rceil` random groups.

    .. math:: y_k = \frac{1}{|B_k|} \sum_{i \in B_k} u_i

    with :math:`u_i` client i's update, and :math:`B_k` the clients of group k. A rule that is
    applied to the :math:`y_k` sees updates that differ less, but a larger share of them is
    malicious: one malicious client spoils its whole group. Only
    :class:`~fedif_flower.strategies.RobustRule` takes groups, since other strategies score or
    remember each client. In records, weights are converted to those of the clients' own updates.
    A group counts for the sum of its clients' examples.

    Parameters
    ----------
    size : int
        The number s of clients in a group, >= 2. The last group may have fewer. A run whose rounds
        may close with fewer than s updates is refused.

    References
    ----------
    Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via
    Bucketing", ICLR 2022, algorithm 1.
    """

    makes_groups = True

    size: Annotated[int, Setting("clients in a group", ge=2)] = 2
    _small_rounds: SmallRounds = field(
        default_factory=SmallRounds, init=False, repr=False, compare=False
    )

    def require_updates(self, count: int, allowed: str) -> int:
        """Return how many groups ``count`` updates make; raise ConfigError if none is complete."""
        require(self.size <= count, "Bucketing.size", self.size, allowed)
        return math.ceil(count / self.size)

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return a round of groups, whose ``mixing`` ``[groups, m]`` says how they are made."""
        m = updates.num_clients
        # From the round's own generator, so that the same run draws the same groups again.
        order = torch.randperm(m, generator=updates.generator("bucketing")).tolist()
        groups = [sorted(order[start : start + self.size]) for start in range(0, m, self.size)]
        if len(groups) == 1:
            words = f"bucketing makes one group of m = {m} updates: a rule takes their mean"
            self._small_rounds.warn(words)
        mixing = torch.zeros(len(groups), m, dtype=torch.float64)
        for row, group in enumerate(groups):
            mixing[row, group] = 1 / len(group)
        counters = []
        if updates.counters:
            for group in groups:
                group_counters = [updates.counters[member] for member in group]
                counters.append(largest_counters({}, group_counters, torch.ones(len(group))))
        return replace(
            updates.mixed(mixing),
            # A stage behind this one knows a group by its first client.
            client_ids=tuple(updates.client_ids[group[0]] for group in groups),
            num_examples=(mixing > 0).double() @ updates.num_examples,
            counters=counters,
        )
