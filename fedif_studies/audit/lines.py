"""The lines that an audit wrote, as numbers: members' values, and what coalitions reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_studies.audit.cases import HONEST

Lines = Sequence[Mapping[str, str]]
"""Rows of a file."""


class MemberValues(NamedTuple):
    """The members' values ``[m]`` in one federation, and who is marked ``[m]``, bool."""

    values: Tensor
    marked: Tensor


BySeed = Mapping[int, MemberValues]
Values = Mapping[tuple[str, str, str], BySeed]
"""By valuation, case and rule, and by seed."""


def values_of(lines: Lines) -> Values:
    """Return the members' values of every federation."""
    rows = defaultdict(list)
    for line in lines:
        federation = line["valuation"], line["case"], line["rule"], int(line["seed"])
        rows[federation].append((float(line["value"]), float(line["marked"])))
    values: dict[tuple[str, str, str], dict[int, MemberValues]] = defaultdict(dict)
    for (name, case, rule, seed), members in rows.items():
        worth, marked = torch.tensor(members, dtype=torch.float64).T
        values[name, case, rule][seed] = MemberValues(worth, marked.bool())
    return values


def missing_federations(lines: Lines) -> str:
    """Return how many federations have no values that others of their kind have in that seed.

    A sentence with a space before it; empty where all are there.
    """
    kinds = {(line["case"], line["rule"]) for line in lines}
    seeds = {line["seed"] for line in lines}
    measured = {(line["case"], line["rule"], line["seed"]) for line in lines}
    count = len(kinds) * len(seeds)
    missing = count - len(measured)
    if not missing:
        return ""
    return f" Missing: {missing} of {count} federations."


def coalition_figures(lines: Lines, case: str, column: str) -> list[Tensor]:
    """Return each seed's figures ``[2**m]`` of every coalition that was trained from scratch."""
    by_seed = defaultdict(list)
    for line in lines:
        if line["case"] == case:
            by_seed[line["seed"]].append(float(line[column]))
    return [torch.tensor(figures, dtype=torch.float64) for figures in by_seed.values()]


def same_members(values: Values, name: str, case: str) -> BySeed:
    """Return a valuation's federations whose members are those of the retrained coalitions.

    Coalitions were trained of the members that seed 0 marks. Other seeds mark other members; where
    nobody is marked, all federations have the same.
    """
    federations = values.get((name, case, "FedAvg"), {})
    if case == HONEST:
        return federations
    return {seed: members for seed, members in federations.items() if seed == 0}
