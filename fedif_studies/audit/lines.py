"""The lines that an audit wrote, as numbers: members' values, and what coalitions reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_studies.audit.cases import HONEST
from fedif_studies.lab.table import grouped

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
    values: dict[tuple[str, str, str], dict[int, MemberValues]] = defaultdict(dict)
    for (name, case, rule, seed), members in grouped(lines, _federation_of).items():
        worth = torch.tensor([float(line["value"]) for line in members], dtype=torch.float64)
        marked = torch.tensor([float(line["marked"]) for line in members]).bool()
        values[name, case, rule][seed] = MemberValues(worth, marked)
    return values


def _federation_of(line: Mapping[str, str]) -> tuple[str, str, str, int]:
    """Return which valuation of which federation a member's line is of."""
    return line["valuation"], line["case"], line["rule"], int(line["seed"])


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
    of_case = [line for line in lines if line["case"] == case]
    figures = []
    for coalitions in grouped(of_case, lambda line: line["seed"]).values():
        reached = [float(line[column]) for line in coalitions]
        figures.append(torch.tensor(reached, dtype=torch.float64))
    return figures


def same_members(values: Values, name: str, case: str) -> BySeed:
    """Return a valuation's federations whose members are those of the retrained coalitions.

    Coalitions were trained of the members that seed 0 marks. Other seeds mark other members; where
    nobody is marked, all federations have the same.
    """
    federations = values.get((name, case, "FedAvg"), {})
    if case == HONEST:
        return federations
    return {seed: members for seed, members in federations.items() if seed == 0}
