"""What an audit measures, line by line: values of members, and federations trained from scratch.

Every line is written as soon as it is known, and never measured twice: an audit may be stopped at
any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import read_rows
from fedif_flower.storage import write_atomically
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.audit.cases import CASES, HONEST, RETRAINED
from fedif_studies.audit.federation import RULES, federate
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.retraining import train_coalitions
from fedif_studies.audit.valuations import ALL_COALITIONS, EXACT, VALUATIONS, WATCHERS
from fedif_studies.rows import add_rows

CONFIG, VALUES, RETRAINING = "config.json", "values.csv", "retraining.csv"
MOST_MEMBERS = 12  # Of whom all coalitions are looked at.
RETRAINING_SEEDS = 2
_AT_ONCE = 256  # Coalitions between two writes.


class ValueLine(NamedTuple):
    """What a valuation says of one member of one federation."""

    case: str
    rule: str
    seed: int
    valuation: str
    member: int
    marked: int
    value: float


class RetrainedLine(NamedTuple):
    """How a coalition does that was trained from scratch; bit i of ``coalition``: member i."""

    case: str
    seed: int
    coalition: int
    test_loss: float
    test_accuracy: float


class Measurements:
    """The two files of an audit.

    Parameters
    ----------
    folder : Path
        Created if it is not there; lines that are there already are kept.
    config : RunConfig
        What was measured; kept beside the lines.

    Raises
    ------
    ConfigError
        If the lines that are there are of another configuration.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        settings = json.dumps(config.identity(), indent=2, sort_keys=True) + "\n"
        if not (folder / CONFIG).exists():
            write_atomically(folder / CONFIG, settings)
        elif (folder / CONFIG).read_text() != settings:
            raise ConfigError(f"{folder} holds an audit of other settings; take another folder")
        self._values = folder / VALUES
        self._retrained = folder / RETRAINING

    def values(self) -> list[ValueLine]:
        """Return what is there of the members' values."""
        return [
            ValueLine(
                *(row["case"], row["rule"], int(row["seed"]), row["valuation"]),
                *(int(row["member"]), int(row["marked"]), float(row["value"])),
            )
            for row in read_rows(self._values)
        ]

    def retrained(self) -> list[RetrainedLine]:
        """Return what is there of the coalitions trained from scratch."""
        return [
            RetrainedLine(
                *(row["case"], int(row["seed"]), int(row["coalition"])),
                *(float(row["test_loss"]), float(row["test_accuracy"])),
            )
            for row in read_rows(self._retrained)
        ]

    def add_values(self, lines: Sequence[ValueLine]) -> None:
        """Write more lines."""
        add_rows(self._values, [line._asdict() for line in lines])

    def add_retrained(self, lines: Sequence[RetrainedLine]) -> None:
        """Write more lines."""
        add_rows(self._retrained, [line._asdict() for line in lines])


def measure(
    task: AuditTask,
    measurements: Measurements,
    console: Console,
    *,
    valuations: Sequence[str] = tuple(VALUATIONS),
    cases: Sequence[str] = tuple(CASES),
    seeds: int = 5,
    retrain: bool = True,
) -> None:
    """Measure what is missing.

    Parameters
    ----------
    task : AuditTask
        What the federations are about.
    measurements : Measurements
        Where lines go.
    console : Console
        Is told of what is done.
    valuations : sequence of str
        Names in :data:`~fedif_studies.audit.valuations.VALUATIONS`.
    cases : sequence of str
        Names in :data:`~fedif_studies.audit.cases.CASES`.
    seeds : int
        How many, >= 1.
    retrain : bool
        Also train all coalitions from scratch.

    Raises
    ------
    ConfigError
        If there are too many members to look at all coalitions.
    """
    if task.config.num_clients > MOST_MEMBERS:
        raise ConfigError(
            f"num-clients = {task.config.num_clients}; allowed: at most {MOST_MEMBERS}, since an "
            "audit looks at all coalitions"
        )
    known = {(line.case, line.rule, line.seed, line.valuation) for line in measurements.values()}
    wanted = [(case, "FedAvg", seed) for seed in range(seeds) for case in cases]
    others = [rule for rule in RULES if rule != "FedAvg" and HONEST in cases]
    wanted += [(HONEST, rule, seed) for seed in range(seeds) for rule in others]
    for case, rule, seed in wanted:
        missing = [name for name in (*valuations, EXACT) if (case, rule, seed, name) not in known]
        if lines := _values(task, case, rule, seed, missing):
            measurements.add_values(lines)
            console.print(f"valued: {case}, {rule}, seed {seed}")
    for seed in range(RETRAINING_SEEDS) if retrain else ():
        for case in RETRAINED:
            retrain_coalitions(task, measurements, console, case, seed)


def _values(
    task: AuditTask, case: str, rule: str, seed: int, valuations: Sequence[str]
) -> list[ValueLine]:
    """Return all valuations' values of one federation's members."""
    members = CASES[case](task, seed)
    if len(members) > MOST_MEMBERS:
        valuations = [name for name in valuations if name not in ALL_COALITIONS]
    if not valuations:
        return []
    watchers = {name: WATCHERS[name]() for name in valuations}
    federate(task, members, seed=seed, rule=RULES[rule](), watchers=list(watchers.values()))
    return [
        ValueLine(case, rule, seed, name, index, int(member.is_marked), value)
        for name, watcher in watchers.items()
        for index, (member, value) in enumerate(zip(members, watcher.values.tolist(), strict=True))
    ]


def retrain_coalitions(
    task: AuditTask, measurements: Measurements, console: Console, case: str, seed: int
) -> None:
    """Train all coalitions of a case that are not trained yet, and write what they reach."""
    # The same members misbehave with every seed: what differs is the training alone.
    members = CASES[case](task, 0)
    known = {
        line.coalition
        for line in measurements.retrained()
        if (line.case, line.seed) == (case, seed)
    }
    masks = all_coalitions(len(members))
    missing = [index for index in range(len(masks)) if index not in known]
    if not missing:
        return
    test = task.server.test
    for start in range(0, len(missing), _AT_ONCE):
        some = missing[start : start + _AT_ONCE]
        trained = train_coalitions(task, members, masks[some], seed=seed)
        found = [test.evaluate(params) for params in trained]
        measurements.add_retrained(
            [
                RetrainedLine(case, seed, coalition, one.loss, one.accuracy)
                for coalition, one in zip(some, found, strict=True)
            ]
        )
    console.print(f"trained {len(missing)} coalitions: {case}, seed {seed}")


def coalition_utilities(lines: Iterable[RetrainedLine], column: str) -> dict[int, torch.Tensor]:
    """Return by seed the figure ``[2**m]`` of every coalition, where all are there."""
    by_seed: dict[int, dict[int, float]] = {}
    for line in lines:
        by_seed.setdefault(line.seed, {})[line.coalition] = float(getattr(line, column))
    complete = {}
    for seed, values in sorted(by_seed.items()):
        count = max(values) + 1
        if len(values) == count and count & (count - 1) == 0:
            complete[seed] = torch.tensor([values[i] for i in range(count)], dtype=torch.float64)
    return complete
