"""How often 95 % intervals cover what members contribute to the loss on other held-out examples.

``python -m fedif_studies.coverage`` draws a held-out set from the test split again and again, runs
a federation of ten members with it, and looks whether the intervals of their contributions and
shares (:mod:`fedif_flower.attribution.intervals`) hold the contributions to the loss on the rest of
the test split. That rest is no infinite set: its own luck is not in the intervals, and
:func:`attainable` says what a perfect interval would cover. It adds a row for each draw that
``docs/results/coverage.csv`` has not yet, and prints a table of all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from statistics import mean
from typing import Annotated

import torch
import typer
from scipy.stats import norm
from torch import Tensor

from fedif_flower.attribution.intervals import half_widths, share_half_widths
from fedif_flower.attribution.path import block_contributions, slopes
from fedif_flower.run.rows import read_rows
from fedif_flower.seeding import numpy_generator
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_flower.valuation import Validation
from fedif_flower.valuation.parts import block_validations, block_weights
from fedif_studies.audit.federation import STRATEGIES, AuditStep, federate
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.valuations import path, summed
from fedif_studies.lab.commands import Again
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "coverage.csv"
MEMBERS = 10
ROUNDS = 12
MOST_OTHERS = 3000  # Examples of the rest that are looked at.
LEAST_OTHERS = 0.9  # As a share of the held-out set: a smaller rest says nothing.
# Small enough for a draw in half a minute of one core.
OF_DATA: Mapping[str, Mapping[str, Scalar]] = {
    "digits": {},
    "fashion-mnist": {"model": "mlp", "learning_rate": 0.01},
}
RULES = ("FedAvg", "FedIF", "influence descent")


def by_block(steps: Sequence[AuditStep], blocks: Sequence[Validation], weights: Tensor) -> Tensor:
    """Return members' contributions to the held-out loss by block of its examples, ``[b, m]``."""
    contributions = torch.zeros(len(blocks), MEMBERS, dtype=torch.float64)
    for step in steps:
        middle = step.start + step.taken / 2
        along = torch.stack([slopes(step.rows, block.gradient(middle)) for block in blocks])
        whole = path("simpson")(step)
        contributions += block_contributions(along, step.coefficients, weights, whole)
    return contributions


@cache
def task_of(data: str, data_dir: str) -> AuditTask:
    """Return the members and their data."""
    settings: dict[str, Scalar] = {
        "dataset": data,
        "num_clients": MEMBERS,
        "num_server_rounds": ROUNDS,
        **OF_DATA[data],
    }
    if data_dir:
        settings["data_dir"] = data_dir
    return AuditTask.of(**settings)


def measure(data_dir: str, cell: Row) -> list[Row]:
    """Return the figures of one draw; none where too few examples are left beside it."""
    examples = cell["examples"]
    draw = cell["draw"]
    task = task_of(cell["data"], data_dir)
    order = numpy_generator("coverage", draw).permutation(len(task.dataset.test))
    rest = order[examples : examples + MOST_OTHERS]
    if len(rest) < LEAST_OTHERS * examples:
        return []
    held_out = task.held_out(order[:examples], draw)
    others = task.held_out(rest, draw)
    rule = STRATEGIES[cell["strategy"]](held_out)
    _, steps = federate(task, task.members, seed=draw, rule=rule)
    steps = [replace(step, validation=held_out) for step in steps]
    steps_elsewhere = [replace(step, validation=others) for step in steps]
    elsewhere = summed(path("simpson"))(steps_elsewhere)
    blocks = block_validations(held_out)
    block_shares = block_weights(blocks)
    contributions = by_block(steps, blocks, block_shares)
    widths = half_widths(contributions.numpy(), block_shares.numpy())
    share_widths = share_half_widths(
        contributions.numpy(), contributions.numpy(), block_shares.numpy()
    )
    values = contributions.sum(dim=0)
    errors = (values - elsewhere).abs().numpy()
    share_errors = (shares_of(values) - shares_of(elsewhere)).abs().numpy()
    row = {
        "seed": draw,
        "others": len(rest),
        "members": MEMBERS,
        "covered": int((errors <= widths).sum()),
        "shares_covered": int((share_errors <= share_widths).sum()),
        "half_width": f"{widths.mean():.5g}",
        "error": f"{errors.mean():.5g}",
        "share_half": f"{share_widths.mean():.5g}",
    }
    return [row]


def shares_of(values: Tensor) -> Tensor:
    """Return members' shares ``[m]`` of what is positive, as a statement divides it."""
    positive = values.clamp_min(0)
    return positive / max(float(positive.sum()), float(values.sum()))


def attainable(examples: int, others: int) -> float:
    """Return what a perfect interval covers, whose target is measured on so many others."""
    # The target's own error widens the difference by the root of 1 + n / others.
    normal = norm.ppf(0.975) / math.sqrt(1 + examples / others)
    return 2 * float(norm.cdf(normal)) - 1


def main(
    data: Annotated[str, typer.Option(help="digits, fashion-mnist or both")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST is")] = "",
    sizes: Annotated[str, typer.Option(help="held-out examples")] = "60,120,300,600",
    draws: Annotated[int, typer.Option(min=1, help="held-out sets for each")] = 20,
    again: Again = False,
) -> None:
    """Measure what the rows lack, and print a table of all."""
    points = product(data.split(","), range(draws), map(int, sizes.split(",")), RULES)
    cells: list[Row] = []
    for name, draw, size, rule in points:
        cells.append({"data": name, "strategy": rule, "examples": size, "draw": draw})
    fill(CSV, cells, partial(measure, data_dir), again=again)
    typer.echo("\n".join(table().to_markdown()))


def table() -> ResultTable:
    """Return by data, rule and size the share of intervals that cover, and what could be."""
    groups = defaultdict(list)
    for row in read_rows(CSV):
        groups[row["data"], row["strategy"], int(row["examples"])].append(row)
    lines = []
    for (name, rule, size), rows in sorted(groups.items()):
        covered = mean(float(row["covered"]) for row in rows) / MEMBERS
        shares_covered = mean(float(row["shares_covered"]) for row in rows) / MEMBERS
        others = mean(float(row["others"]) for row in rows)
        line = [
            name,
            rule,
            str(size),
            str(len(rows)),
            f"{covered:.0%}",
            f"{shares_covered:.0%}",
            f"{attainable(size, int(others)):.0%}",
        ]
        lines.append(line)
    heading = ["data", "rule", "held out", "draws", "covered", "shares covered", "attainable"]
    return ResultTable("Coverage", heading, lines, num_labels=2)


if __name__ == "__main__":
    typer.run(main)
