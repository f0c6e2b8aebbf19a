"""Reads the lines that an audit wrote: members' values, and coalitions' losses and accuracies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_studies.audit.cases import HONEST
from fedif_studies.lab.table import grouped

Lines = Sequence[Mapping[str, str]]
"""Rows of a CSV file."""


class MemberValues(NamedTuple):
    """The members' values ``[m]`` in one federation, and which are marked: ``[m]``, bool."""

    values: Tensor
    marked: Tensor


BySeed = Mapping[int, MemberValues]
Values = Mapping[tuple[str, str, str], BySeed]
"""Members' values by (valuation, case, rule), then by seed."""


def values_of(lines: Lines) -> Values:
    """Return the members' values of every federation."""
    values: dict[tuple[str, str, str], dict[int, MemberValues]] = defaultdict(dict)
    for (name, case, rule, seed), members in grouped(lines, _federation_of).items():
        marked = _column_of(members, "marked").bool()
        values[name, case, rule][seed] = MemberValues(_column_of(members, "value"), marked)
    return values


def _column_of(lines: Lines, column: str) -> Tensor:
    """Return a column's numbers, one for each line, float64."""
    return torch.tensor([float(line[column]) for line in lines], dtype=torch.float64)


def _federation_of(line: Mapping[str, str]) -> tuple[str, str, str, int]:
    """Return the valuation and the federation (case, rule, seed) that a line belongs to."""
    return line["valuation"], line["case"], line["rule"], int(line["seed"])


def missing_federations(lines: Lines) -> str:
    """Return a sentence on how many federations have no lines, with a space before it.

    Every case and rule should have lines for every seed that appears. If all have, it is empty.
    """
    kinds = set()
    seeds = set()
    measured = set()
    for line in lines:
        kind = (line["case"], line["rule"])
        kinds.add(kind)
        seeds.add(line["seed"])
        measured.add((kind, line["seed"]))
    count = len(kinds) * len(seeds)
    missing = count - len(measured)
    if not missing:
        return ""
    return f" Missing: {missing} of {count} federations."


def coalition_figures(lines: Lines, case: str, column: str) -> list[Tensor]:
    """Return a column's figures ``[2**m]`` for each seed, one for each retrained coalition.

    Lines have to be in the order of coalitions.
    """
    of_case = [line for line in lines if line["case"] == case]
    by_seed = grouped(of_case, lambda line: line["seed"])
    return [_column_of(coalitions, column) for coalitions in by_seed.values()]


def same_members(values: Values, name: str, case: str) -> BySeed:
    """Return a valuation's federations that have the same members as the retrained coalitions.

    Coalitions are trained with the members that misbehave with seed 0. With other seeds, other
    members misbehave; in the honest case all federations have the same members.
    """
    federations = values.get((name, case, "FedAvg"), {})
    if case == HONEST:
        return federations
    return {seed: members for seed, members in federations.items() if seed == 0}
