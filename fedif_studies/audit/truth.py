"""Members known to be bad: who finds them, and what a federation without the lowest valued does.

Half of the members are bad to five degrees: by wrong labels, or by having few examples. With many
members each is seen in a few rounds alone, and no coalitions are needed to know the truth. The
lowest valued are then left out, as many as are bad, and the others train from scratch; controls are
to leave out nobody, those that are bad, or as many at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.seeding import numpy_generator
from fedif_studies.audit.cases import THREATS, Case
from fedif_studies.audit.federation import AuditStep, Watcher, federate
from fedif_studies.audit.findings import auc, spearman
from fedif_studies.audit.members import AuditTask, Member, shortened
from fedif_studies.audit.valuations import VALUATIONS, Smoothed, Summed, influence_scores

GRADES = (0.2, 0.4, 0.6, 0.8, 1.0)
LEAST = 0.1  # Of its examples, for a member of the worst grade.
RANDOM_DRAWS = 5
EVERYBODY, ORACLE, AT_RANDOM = "nobody left out", "the bad left out", "as many at random left out"
AUC, RANKS, GATED = "AUC", "Spearman", "gated accuracy"
PER_ROUND = ", per round"
CORRECTED = "FedIF Omega, bias-corrected"
SEEN_SELDOM: Mapping[str, Callable[[], Watcher]] = {
    **VALUATIONS,
    CORRECTED: lambda: Smoothed(influence_scores, bias_correction=True),
}


def graded(worsen: Callable[[Member, float], Member]) -> Case:
    """Return the case in which half of the members are made worse, by :data:`GRADES` in turn."""

    def members(task: AuditTask, seed: int) -> list[Member]:
        found = list(task.members)
        order = numpy_generator("audit-grades", task.config.seed, seed).permutation(len(found))
        for place, index in enumerate(order[: len(found) // 2].tolist()):
            grade = GRADES[place % len(GRADES)]
            found[index] = replace(worsen(found[index], grade), is_marked=True, grade=grade)
        return found

    return members


LABELS, AMOUNTS, NOISE = "graded label noise", "graded amounts", "gradient noise"
TRUTHS: Mapping[str, Case] = {
    LABELS: graded(lambda member, grade: replace(member, behaviour=LabelNoise(grade))),
    AMOUNTS: graded(lambda member, grade: shortened(member, 1.0 - (1.0 - LEAST) * grade)),
    NOISE: THREATS[NOISE],
}


class TruthLine(NamedTuple):
    """One figure of a valuation in one federation, or of a control."""

    data: str
    members: int
    case: str
    seed: int
    rounds: int
    valuation: str
    figure: str
    value: float


@dataclass
class Snapshots:
    """Keeps what the valuations ``watchers`` say after the rounds ``at``; to look on as the last.

    Attributes
    ----------
    seen : Tensor
        ``[m]``: in how many rounds each member took part.
    taken : dict
        By round: in how many rounds each took part until then, and values by valuation.
    """

    watchers: Mapping[str, Watcher]
    at: Sequence[int]
    seen: Tensor = field(default_factory=lambda: torch.zeros(0))
    taken: dict[int, tuple[Tensor, dict[str, Tensor]]] = field(default_factory=dict)

    def take(self, step: AuditStep) -> None:
        """Count who took part, and keep the values after the rounds that are asked for."""
        if not len(self.seen):
            self.seen = torch.zeros(step.num_members, dtype=torch.float64)
        self.seen[list(step.updates.client_ids)] += 1
        if step.updates.server_round not in self.at:
            return
        found = {}
        for name, watcher in self.watchers.items():
            found[name] = watcher.values
            if isinstance(watcher, Summed) and self.seen.max() > self.seen.min():
                found[name + PER_ROUND] = watcher.values / self.seen.clamp_min(1.0)
        self.taken[step.updates.server_round] = self.seen.clone(), found

    @property
    def values(self) -> Tensor:
        """How often each was seen, ``[m]``."""
        return self.seen


def truth_lines(
    task: AuditTask, data: str, case: str, seed: int, per_round: int
) -> Iterator[TruthLine]:
    """Yield every figure of one federation and of those without the lowest valued members.

    Parameters
    ----------
    task : AuditTask
        What it is about.
    data : str
        What the data are called in the lines.
    case : str
        A name in :data:`TRUTHS`.
    seed : int
        Who is bad, the first model, and who is drawn.
    per_round : int
        How many members are drawn for a round.
    """
    members, rounds = TRUTHS[case](task, seed), task.config.num_server_rounds
    bad = torch.tensor([member.is_marked for member in members])
    grades = torch.tensor([member.grade for member in members])
    seldom = per_round < len(members)
    valuations = SEEN_SELDOM if seldom else VALUATIONS
    watchers = {name: build() for name, build in valuations.items()}
    snapshots = Snapshots(
        watchers, (rounds // 10, 3 * rounds // 10, rounds) if seldom else [rounds]
    )

    def line(after: int, valuation: str, figure: str, value: float) -> TruthLine:
        return TruthLine(data, len(members), case, seed, after, valuation, figure, value)

    def train(left_out: frozenset[int], *looking: Watcher) -> float:
        kept = [member for index, member in enumerate(members) if index not in left_out]
        params = federate(task, kept, seed=seed, watchers=looking, per_round=per_round)
        return task.server.test.evaluate(params).accuracy

    without = cache(train)
    yield line(rounds, EVERYBODY, GATED, train(frozenset(), *watchers.values(), snapshots))
    yield line(rounds, ORACLE, GATED, without(frozenset(bad.nonzero()[:, 0].tolist())))
    count = int(bad.sum())
    for draw in range(RANDOM_DRAWS):
        order = numpy_generator("audit-random", seed, draw).permutation(len(members))
        yield line(rounds, AT_RANDOM, GATED, without(frozenset(order[:count].tolist())))
    for after, (seen, values) in snapshots.taken.items():
        there = seen > 0
        for name, own in values.items():
            yield line(after, name, AUC, auc(own[there], bad[there]))
            if grades.any():
                yield line(after, name, RANKS, spearman(own[there], -grades[there]))
            # Who has a mean is left out by it: a sum is low for who was seldom drawn.
            if after == rounds and name + PER_ROUND not in values:
                lowest = torch.where(there, own, torch.inf).argsort(stable=True)[:count]
                yield line(after, name, GATED, without(frozenset(lowest.tolist())))
