"""How near each valuation comes to what it could be after, and what it costs beside that.

Ten members in every round, so that all coalitions can be looked at: within the run, and trained
from scratch with three seeds. How well two seeds' retrainings agree bounds what a valuation, which
sees one run, can reach. Exact values and leave-one-out are also taken by accuracy and macro-F1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.valuation import Validation
from fedif_flower.valuation.objective import METRICS, Metric
from fedif_studies.audit.cases import CASES
from fedif_studies.audit.cost import Priced
from fedif_studies.audit.federation import AuditStep, Watcher, federate
from fedif_studies.audit.findings import CEILING, CORRELATIONS, shapley_of
from fedif_studies.audit.measure import RetrainedLine, coalition_utilities
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.valuations import EXACT, WATCHERS, Summed, coalition_values, exact_in_run

EXAMPLES = "number of examples (control)"
# How they become utilities.
UTILITIES = {"test_loss": -1.0, "test_accuracy": 1.0, "test_macro_f1": 1.0}
WITHIN = "exact in-run"
OBJECTIVES: Mapping[Metric, str] = {"loss": "loss", "accuracy": "accuracy", "score": "macro-F1"}
BY_OBJECTIVE: Mapping[str, Callable[[Metric], Callable[[AuditStep], Tensor]]] = {
    EXACT: lambda metric: lambda step: exact_in_run(step, metric),
    "leave-one-out": lambda metric: coalition_values("leave-one-out", metric),
}


class TargetLine(NamedTuple):
    """One figure of a valuation in one federation; ``target``: against what, if anything."""

    data: str
    case: str
    seed: int
    valuation: str
    figure: str
    target: str
    value: float


class ObjectiveLine(NamedTuple):
    """What a valuation by an objective says of a member."""

    data: str
    case: str
    seed: int
    valuation: str
    objective: str
    member: int
    marked: int
    value: float


class On:
    """A watcher that looks at other held-out data than the run's."""

    def __init__(self, validation: Validation, watcher: Watcher) -> None:
        self._validation, self._watcher = validation, watcher

    def take(self, step: AuditStep) -> None:
        """Look at a round."""
        self._watcher.take(replace(step, validation=self._validation))

    @property
    def values(self) -> Tensor:
        """The watcher's values, ``[m]``."""
        return self._watcher.values


def target_lines(
    task: AuditTask, data: str, case: str, seed: int, retrained: Sequence[RetrainedLine]
) -> tuple[list[TargetLine], list[ObjectiveLine]]:
    """Return cost, agreement, and values by objective of one federation of ten.

    Parameters
    ----------
    task : AuditTask
        What it is about.
    data : str
        What the data are called in the lines.
    case : str
        A name in :data:`~fedif_studies.audit.cases.CASES`.
    seed : int
        Of the training; the same members misbehave with each.
    retrained : sequence of RetrainedLine
        The same case's coalitions, as far as they are trained.
    """
    members = CASES[case](task, 0)
    priced = {name: Priced(build()) for name, build in WATCHERS.items()}
    scored = task.scored(0)
    by_objective = {
        (name, metric): On(scored, Summed(value(metric)))
        for name, value in BY_OBJECTIVE.items()
        for metric in METRICS
    }
    federate(task, members, seed=seed, watchers=[*priced.values(), *by_objective.values()])
    targets = {(WITHIN, ""): priced[EXACT].values} | {
        (utility, str(other)): shapley_of(sign * table)
        for utility, sign in UTILITIES.items()
        for other, table in coalition_utilities(retrained, utility).items()
    }
    lines = [
        TargetLine(data, case, seed, name, figure, "", value)
        for name, watcher in priced.items()
        for figure, value in watcher.per_round().items()
    ]
    found = {name: watcher.values for name, watcher in priced.items()}
    found[EXAMPLES] = torch.tensor([member.claimed for member in members], dtype=torch.float64)
    lines += [
        TargetLine(*(data, case, seed, name, f"{kind}, {utility}", other), correlation(own, target))
        for name, own in found.items()
        for (utility, other), target in targets.items()
        for kind, correlation in CORRELATIONS.items()
    ]
    values = [
        ObjectiveLine(
            *(data, case, seed, name, OBJECTIVES[metric]),
            *(index, int(member.is_marked), value),
        )
        for (name, metric), watcher in by_objective.items()
        for index, (member, value) in enumerate(zip(members, watcher.values.tolist(), strict=True))
    ]
    return lines, values


def ceiling_lines(data: str, case: str, retrained: Sequence[RetrainedLine]) -> Iterator[TargetLine]:
    """Yield how well two seeds' retrainings agree, for each pair of seeds."""
    for utility, sign in UTILITIES.items():
        tables = coalition_utilities(retrained, utility)
        values = {seed: shapley_of(sign * table) for seed, table in tables.items()}
        for (seed, own), (other, theirs) in combinations(values.items(), 2):
            for kind, correlation in CORRELATIONS.items():
                figure = f"{kind}, {utility}"
                value = correlation(own, theirs)
                yield TargetLine(data, case, seed, CEILING, figure, str(other), value)
