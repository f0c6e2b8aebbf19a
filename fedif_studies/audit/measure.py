"""What an audit measures, line by line: values of members, and federations trained from scratch.

Lines are written as soon as a federation is done, and never measured twice: an audit may be stopped
at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from fedif_flower.errors import ConfigError, require
from fedif_flower.run.federation import identity_of
from fedif_flower.run.record_files import JsonFile
from fedif_flower.storage import make_folder
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.audit.cases import CASES, HONEST, RETRAINED
from fedif_studies.audit.federation import RULES, federate
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.retraining import train_coalitions
from fedif_studies.audit.valuations import ALL_COALITIONS, VALUATIONS
from fedif_studies.lab.filling import fill
from fedif_studies.rows import Row

CONFIG = "config.json"
VALUES = "values.csv"
RETRAINING = "retraining.csv"
MOST_MEMBERS = 12  # All coalitions of so many are still looked at.
RETRAINING_SEEDS = 3
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
        Also train all coalitions from scratch, of those of the cases of which that is asked.
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
    _require_same_settings(folder, task)
    measure_values = partial(_values, task, valuations)
    complete = fill(folder / VALUES, _cells(cases, seeds), measure_values, again=again)
    if retrain:
        measure_coalitions = partial(_retrained, task)
        cells = _retrained_cells(cases)
        complete &= fill(folder / RETRAINING, cells, measure_coalitions, again=again)
    return complete


def _require_same_settings(folder: Path, task: AuditTask) -> None:
    """Note what an audit is of in its folder; raise ``ConfigError`` if it holds another's.

    That is its settings, its data, and the code beside the library that they name.
    """
    identity = identity_of(task.server)
    if task.images:
        identity["images"] = task.images
    file = JsonFile(folder / CONFIG)
    if not file.path.exists():
        file.write(dict(sorted(identity.items())))
        return
    noted = file.read()
    # Audits of earlier versions noted no data; what has a name is the same images everywhere.
    if "data" not in noted and task.config.dataset != "image-folder":
        noted["data"] = identity["data"]
    for name in sorted(noted.keys() | identity.keys()):
        if noted.get(name) != identity.get(name):
            raise ConfigError(
                f"{folder} holds an audit of other settings: {name} was {noted.get(name)!r} and is "
                f"{identity.get(name)!r}; take another folder"
            )


def _cells(cases: Sequence[str], seeds: int) -> list[Row]:
    """Return the federations to value: all cases with FedAvg, the honest one with every rule."""
    runs = [(case, "FedAvg") for case in cases]
    if HONEST in cases:
        runs += [(HONEST, rule) for rule in RULES if rule != "FedAvg"]
    cells: list[Row] = []
    for seed in range(seeds):
        cells += [{"case": case, "rule": rule, "seed": seed} for case, rule in runs]
    return cells


def _retrained_cells(cases: Sequence[str]) -> list[Row]:
    """Return the federations of which all coalitions train from scratch, of these cases."""
    cells: list[Row] = []
    for seed in range(RETRAINING_SEEDS):
        cells += [{"case": case, "seed": seed} for case in RETRAINED if case in cases]
    return cells


def _values(task: AuditTask, valuations: Sequence[str], cell: Row) -> list[Row]:
    """Return all valuations' values of one federation's members."""
    seed = cell["seed"]
    members = CASES[cell["case"]](task, seed)
    rule = RULES[cell["rule"]](task.server.validation)
    _, steps = federate(task, members, seed=seed, rule=rule)
    # A game may add members: of more than these, nobody waits for all coalitions.
    left_out = ALL_COALITIONS if len(members) > MOST_MEMBERS else ()
    rows: list[Row] = []
    for name in valuations:
        if name in left_out:
            continue
        values = VALUATIONS[name](steps).tolist()
        for index, (member, value) in enumerate(zip(members, values, strict=True)):
            marked = int(member.is_marked)
            rows.append({"valuation": name, "member": index, "marked": marked, "value": value})
    return rows


def _retrained(task: AuditTask, cell: Row) -> list[Row]:
    """Train all coalitions of a case, and return what they reach; bit i: member i."""
    # The same members misbehave with every seed: what differs is the training alone.
    members = CASES[cell["case"]](task, 0)
    rows: list[Row] = []
    for masks in torch.split(all_coalitions(len(members)), _AT_ONCE):
        for params in train_coalitions(task, members, masks, seed=cell["seed"]):
            reached = task.server.test.evaluate(params)
            row = {"test_loss": reached.loss, "test_accuracy": reached.accuracy}
            rows.append({"coalition": len(rows), **row})
    return rows
