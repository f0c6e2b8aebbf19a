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
MEMBERS, ROUNDS = 10, 12
MOST_OTHERS = 3000  # Examples of the rest that are looked at.
LEAST_OTHERS = 0.9  # Of the held-out set: a smaller rest says nothing.
# Small enough for a draw in half a minute of one core.
OF_DATA: Mapping[str, Mapping[str, Scalar]] = {
    "digits": {},
    "fashion-mnist": {"model": "mlp", "learning_rate": 0.01},
}
RULES = ("FedAvg", "FedIF", "influence descent")
KEY = ("data", "strategy", "examples", "draw")
FIGURES = ("others", "members", "covered", "shares_covered", "half_width", "error", "share_half")


def by_block(steps: Sequence[AuditStep], blocks: Sequence[Validation], weights: Tensor) -> Tensor:
    """Return members' contributions to the held-out loss by block of its examples, ``[b, m]``."""
    found = torch.zeros(len(blocks), MEMBERS, dtype=torch.float64)
    for step in steps:
        middle = step.start + step.taken / 2
        along = torch.stack([slopes(step.rows, block.gradient(middle)) for block in blocks])
        found += block_contributions(along, step.coefficients, weights, path("simpson")(step))
    return found


@cache
def task_of(data: str, data_dir: str) -> AuditTask:
    """Return the members and their data."""
    own = {"dataset": data, "num_clients": MEMBERS, "num_server_rounds": ROUNDS, **OF_DATA[data]}
    return AuditTask.of(**own, **({"data_dir": data_dir} if data_dir else {}))


def measure(data_dir: str, cell: Row) -> list[Row]:
    """Return the figures of one draw; none where too few examples are left beside it."""
    data, strategy, examples, draw = cell.values()
    task = task_of(data, data_dir)
    order = numpy_generator("coverage", draw).permutation(len(task.dataset.test))
    rest = order[examples : examples + MOST_OTHERS]
    if len(rest) < LEAST_OTHERS * examples:
        return []
    held_out, others = task.held_out(order[:examples], draw), task.held_out(rest, draw)
    _, steps = federate(task, task.members, seed=draw, rule=STRATEGIES[strategy](held_out))
    steps = [replace(step, validation=held_out) for step in steps]
    elsewhere = summed(path("simpson"))([replace(step, validation=others) for step in steps])
    blocks = block_validations(held_out)
    weights = block_weights(blocks)
    found = by_block(steps, blocks, weights)
    contributions, parts = found.numpy(), weights.numpy()
    widths = half_widths(contributions, parts)
    share_widths = share_half_widths(contributions, contributions, parts)
    values = found.sum(dim=0)
    errors = (values - elsewhere).abs().numpy()
    ours, theirs = (
        own.clamp_min(0) / max(float(own.clamp_min(0).sum()), float(own.sum()))
        for own in (values, elsewhere)
    )
    covered = int((errors <= widths).sum())
    shares_covered = int(((ours - theirs).abs().numpy() <= share_widths).sum())
    means = [f"{own.mean():.5g}" for own in (widths, errors, share_widths)]
    figures = [len(rest), MEMBERS, covered, shares_covered, *means]
    return [{"seed": draw, **dict(zip(FIGURES, figures, strict=True))}]


def attainable(examples: int, others: int) -> float:
    """Return what a perfect interval covers, whose target is measured on so many others."""
    return 2 * float(norm.cdf(norm.ppf(0.975) / math.sqrt(1 + examples / others))) - 1


def main(
    data: Annotated[str, typer.Option(help="digits, fashion-mnist or both")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST is")] = "",
    sizes: Annotated[str, typer.Option(help="held-out examples")] = "60,120,300,600",
    draws: Annotated[int, typer.Option(min=1, help="held-out sets for each")] = 20,
    again: Again = False,
) -> None:
    """Measure what the rows lack, and print a table of all."""
    points = product(data.split(","), range(draws), map(int, sizes.split(",")), RULES)
    cells: list[Row] = [
        dict(zip(KEY, (name, rule, size, draw), strict=True)) for name, draw, size, rule in points
    ]
    fill(CSV, cells, partial(measure, data_dir), again=again)
    typer.echo("\n".join(table().to_markdown()))


def table() -> ResultTable:
    """Return by data, rule and size the share of intervals that cover, and what could be."""
    groups = defaultdict(list)
    for row in read_rows(CSV):
        groups[row["data"], row["strategy"], int(row["examples"])].append(row)
    lines = []
    for (name, rule, size), rows in sorted(groups.items()):
        others, covered, shares = (
            mean(float(row[figure]) for row in rows)
            for figure in ("others", "covered", "shares_covered")
        )
        found = (covered / MEMBERS, shares / MEMBERS, attainable(size, int(others)))
        lines.append([name, rule, str(size), str(len(rows)), *(f"{share:.0%}" for share in found)])
    heading = ["data", "rule", "held out", "draws", "covered", "shares covered", "attainable"]
    return ResultTable("Coverage", heading, lines, num_labels=2)


if __name__ == "__main__":
    typer.run(main)
