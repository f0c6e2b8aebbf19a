"""What an audit measures, line by line: values of members, and federations trained from scratch.

Lines are written as soon as a federation is done, and never measured twice: an audit may be stopped
at any time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from fedif_flower.errors import ConfigError, require
from fedif_flower.storage import make_folder, write_atomically
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.audit.cases import CASES, HONEST, RETRAINED
from fedif_studies.audit.federation import RULES, federate
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.retraining import train_coalitions
from fedif_studies.audit.valuations import ALL_COALITIONS, VALUATIONS
from fedif_studies.lab.run import fill
from fedif_studies.rows import Row

CONFIG, VALUES, RETRAINING = "config.json", "values.csv", "retraining.csv"
MOST_MEMBERS = 12  # Of whom all coalitions are looked at.
RETRAINING_SEEDS = 2
_AT_ONCE = 256  # Coalitions side by side.


def measure(
    task: AuditTask,
    folder: Path,
    *,
    valuations: Sequence[str] = tuple(VALUATIONS),
    cases: Sequence[str] = tuple(CASES),
    seeds: int = 5,
    retrain: bool = True,
    again: bool = False,
) -> bool:
    """Measure the federations that have no row, and return whether all are there.

    Parameters
    ----------
    task : AuditTask
        What the federations are about.
    folder : Path
        Where lines go, and beside them the configuration.
    valuations : sequence of str
        Names in :data:`~fedif_studies.audit.valuations.VALUATIONS`.
    cases : sequence of str
        Names in :data:`~fedif_studies.audit.cases.CASES`.
    seeds : int
        How many, >= 1.
    retrain : bool
        Also train all coalitions from scratch.
    again : bool
        Measure what has a row, too.

    Raises
    ------
    ConfigError
        If there are too many members to look at all coalitions, the lines that are there are of
        another configuration, or the code is not committed.
    GridInterrupted
        If a signal asked for an end; the same call goes on from there.
    """
    count = task.config.num_clients
    allowed = f"at most {MOST_MEMBERS}: all coalitions are looked at"
    require(count <= MOST_MEMBERS, "num-clients", count, allowed)
    make_folder(folder)
    settings = json.dumps(task.config.identity(), indent=2, sort_keys=True) + "\n"
    if not (folder / CONFIG).exists():
        write_atomically(folder / CONFIG, settings)
    elif (folder / CONFIG).read_text() != settings:
        raise ConfigError(f"{folder} holds an audit of other settings; take another folder")
    others = [(HONEST, rule) for rule in RULES if rule != "FedAvg" and HONEST in cases]
    runs = [*((case, "FedAvg") for case in cases), *others]
    wanted: list[Row] = [
        {"case": case, "rule": rule, "seed": seed} for seed in range(seeds) for case, rule in runs
    ]
    complete = fill(folder / VALUES, wanted, partial(_values, task, valuations), again=again)
    trained: list[Row] = [
        {"case": case, "seed": seed} for seed in range(RETRAINING_SEEDS) for case in RETRAINED
    ]
    if retrain:
        complete &= fill(folder / RETRAINING, trained, partial(_retrained, task), again=again)
    return complete


def _values(task: AuditTask, valuations: Sequence[str], cell: Row) -> list[Row]:
    """Return all valuations' values of one federation's members."""
    case, rule, seed = cell.values()
    members = CASES[case](task, seed)
    left_out = ALL_COALITIONS if len(members) > MOST_MEMBERS else ()
    _, steps = federate(task, members, seed=seed, rule=RULES[rule](task.server.validation))
    return [
        {"valuation": name, "member": index, "marked": int(member.is_marked), "value": value}
        for name in valuations
        if name not in left_out
        for index, (member, value) in enumerate(
            zip(members, VALUATIONS[name](steps).tolist(), strict=True)
        )
    ]


def _retrained(task: AuditTask, cell: Row) -> list[Row]:
    """Train all coalitions of a case, and return what they reach; bit i: member i."""
    # The same members misbehave with every seed: what differs is the training alone.
    members = CASES[cell["case"]](task, 0)
    found = [
        task.server.test.evaluate(params)
        for masks in torch.split(all_coalitions(len(members)), _AT_ONCE)
        for params in train_coalitions(task, members, masks, seed=cell["seed"])
    ]
    return [
        {"coalition": index, "test_loss": one.loss, "test_accuracy": one.accuracy}
        for index, one in enumerate(found)
    ]
