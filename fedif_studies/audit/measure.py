"""Measures an audit: the values of members, and coalitions' federations trained from scratch.

Lines are written as soon as a federation is done. An audit that was stopped goes on without
measuring them again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer

from fedif_flower.errors import ConfigError, require
from fedif_flower.run.federation import identity_of
from fedif_flower.run.record_files import JsonFile
from fedif_flower.run.rows import read_rows
from fedif_flower.storage import make_folder
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_flower.words import listed
from fedif_studies.audit.cases import CASES, HONEST, RETRAINED
from fedif_studies.audit.federation import RULES, federate
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.retraining import evaluate_coalitions
from fedif_studies.audit.valuations import ALL_COALITIONS, VALUATIONS
from fedif_studies.lab.filling import fill
from fedif_studies.rows import Row

CONFIG = "config.json"
VALUES = "values.csv"
RETRAINING = "retraining.csv"
MOST_MEMBERS = 12  # 2**12 coalitions can still be evaluated.
RETRAINING_SEEDS = 3  # How often each coalition is trained from scratch.
Federation = tuple[str, str, str]
"""The case, the rule and the seed of a federation, as its rows have them."""


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
    """Measure the federations that have no row, and return whether all values are there now.

    A federation that has rows without the values of a valuation, as it was measured before somebody
    added the valuation, is not measured again: the valuation is printed as missing.

    Parameters
    ----------
    task : AuditTask
        The data, the model and the members of all federations.
    folder : Path
        The folder of the lines and of the audit's settings.
    valuations : sequence of str
        Names in :data:`~fedif_studies.audit.valuations.VALUATIONS`.
    cases : sequence of str
        Names in :data:`~fedif_studies.audit.cases.CASES`.
    seeds : int
        The number of seeds, >= 1.
    retrain : bool
        Also train all coalitions from scratch, for the cases that are in ``RETRAINED``.
    again : bool
        Also measure federations that have a row.

    Raises
    ------
    ConfigError
        If there are too many members to evaluate all coalitions, the folder holds an audit of other
        settings, or the code is not committed.
    GridInterrupted
        If a signal stops it. The same call then measures what is left, or with ``again``, all once
        more.
    """
    count = task.config.num_clients
    allowed = f"at most {MOST_MEMBERS}: all coalitions are looked at"
    require(count <= MOST_MEMBERS, "num-clients", count, allowed)
    make_folder(folder)
    _write_settings_once(folder, task)
    measure_values = partial(_values, task, valuations)
    federations = _cells(cases, seeds)
    complete = fill(folder / VALUES, federations, measure_values, again=again)
    without_values = _without_values(folder / VALUES, federations, valuations)
    if without_values:
        names = listed(without_values)
        typer.echo(f"Missing in rows that were there: values of {names}; --again measures them")
        complete = False
    if retrain:
        measure_coalitions = partial(_retrained, task)
        cells = _retrained_cells(cases)
        complete &= fill(folder / RETRAINING, cells, measure_coalitions, again=again)
    return complete


def _write_settings_once(folder: Path, task: AuditTask) -> None:
    """Write an audit's settings into its folder; raise ``ConfigError`` if it holds other ones.

    They include a hash of the data, and of code outside the library that the settings name.
    """
    identity = identity_of(task.server)
    if task.images:
        identity["images"] = task.images
    file = JsonFile(folder / CONFIG)
    if not file.path.exists():
        file.write(dict(sorted(identity.items())))
        return
    noted = file.read()
    # Earlier versions did not write the data's hash. A data set with a name is the same everywhere.
    if "data" not in noted and task.config.dataset != "image-folder":
        noted["data"] = identity["data"]
    for name in sorted(noted.keys() | identity.keys()):
        if noted.get(name) != identity.get(name):
            raise ConfigError(
                f"{folder} holds an audit of other settings: {name} was {noted.get(name)!r} and is "
                f"{identity.get(name)!r}; take another folder"
            )


def _cells(cases: Sequence[str], seeds: int) -> list[Row]:
    """Return the federations to value: every case with FedAvg, the honest one with every rule."""
    runs = [(case, "FedAvg") for case in cases]
    if HONEST in cases:
        runs += [(HONEST, rule) for rule in RULES if rule != "FedAvg"]
    cells: list[Row] = []
    for seed in range(seeds):
        cells += [{"case": case, "rule": rule, "seed": seed} for case, rule in runs]
    return cells


def _without_values(path: Path, cells: Sequence[Row], valuations: Sequence[str]) -> list[str]:
    """Return the valuations of which a federation with rows has no values, but should."""
    asked_for = {(cell["case"], cell["rule"], str(cell["seed"])) for cell in cells}
    valuations_of: dict[Federation, set[str]] = defaultdict(set)
    members_of: dict[Federation, set[str]] = defaultdict(set)
    for row in read_rows(path):
        federation = (row["case"], row["rule"], row["seed"])
        if federation in asked_for:
            valuations_of[federation].add(row["valuation"])
            members_of[federation].add(row["member"])
    missing: set[str] = set()
    for federation, measured in valuations_of.items():
        num_members = len(members_of[federation])
        missing.update(set(_valuations_for(num_members, valuations)) - measured)
    return [name for name in valuations if name in missing]


def _valuations_for(num_members: int, valuations: Sequence[str]) -> list[str]:
    """Return the valuations that so many members are measured by.

    A game may add members. With more than MOST_MEMBERS, all coalitions would take too long.
    """
    left_out = ALL_COALITIONS if num_members > MOST_MEMBERS else ()
    return [name for name in valuations if name not in left_out]


def _retrained_cells(cases: Sequence[str]) -> list[Row]:
    """Return the cases, among these, whose coalitions are trained from scratch, by seed."""
    cells: list[Row] = []
    for seed in range(RETRAINING_SEEDS):
        cells += [{"case": case, "seed": seed} for case in RETRAINED if case in cases]
    return cells


def _values(task: AuditTask, valuations: Sequence[str], cell: Row) -> list[Row]:
    """Return a row for each valuation and member of one federation."""
    seed = cell["seed"]
    members = CASES[cell["case"]](task, seed)
    rule = RULES[cell["rule"]](task.server.validation)
    _, steps = federate(task, members, seed=seed, rule=rule)
    rows: list[Row] = []
    for name in _valuations_for(len(members), valuations):
        values = VALUATIONS[name](steps).tolist()
        for index, (member, value) in enumerate(zip(members, values, strict=True)):
            marked = int(member.is_marked)
            rows.append({"valuation": name, "member": index, "marked": marked, "value": value})
    return rows


def _retrained(task: AuditTask, cell: Row) -> list[Row]:
    """Train all coalitions of a case, and return a row with the test figures of each.

    The rows are in the order of coalitions; bit i of a coalition's number stands for member i.
    """
    # The members of seed 0 misbehave with every seed, so that only the training differs.
    members = CASES[cell["case"]](task, 0)
    rows: list[Row] = []
    masks = all_coalitions(len(members))
    for reached in evaluate_coalitions(task, members, masks, seed=cell["seed"]):
        row = {"test_loss": reached.loss, "test_accuracy": reached.accuracy}
        rows.append({"coalition": len(rows), **row})
    return rows
