"""How often 95 % intervals cover what members contribute to the loss on other held-out examples.

``python -m fedif_studies.coverage`` draws a held-out set from the test split again and again, runs
a federation of ten members with it, and looks whether the intervals of their contributions and
shares (:mod:`fedif_flower.valuation.intervals`) hold the contributions to the loss on the rest of
the test split. That rest is no infinite set: its own luck is not in the intervals, and
:func:`attainable` says what a perfect interval would cover. It adds a row for each draw that
``docs/results/coverage.csv`` has not yet, and prints a table of all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache, partial
from itertools import product
from typing import Annotated

import numpy as np
import torch
import typer
from scipy.stats import norm
from torch import Tensor

from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.rows import read_rows
from fedif_flower.seeding import numpy_generator
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_flower.tasks.data.transforms import to_pixels
from fedif_flower.valuation import Validation
from fedif_flower.valuation.blocks import block_validations, block_weights
from fedif_flower.valuation.intervals import half_widths, share_half_widths
from fedif_flower.valuation.path import block_contributions, path_attribution, slopes
from fedif_studies.audit.federation import STRATEGIES, AuditStep, federate
from fedif_studies.audit.members import AuditTask
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "coverage.csv"
MEMBERS, ROUNDS = 10, 12
MOST_OTHERS = 3000  # Examples of the rest that are looked at.
LEAST_OTHERS = 0.9  # Of the held-out set: a smaller rest says nothing.
# Small enough for a draw in half a minute of one core.
OF_DATA: Mapping[str, Mapping[str, Scalar]] = {
    "fashion-mnist": {"model": "mlp", "learning-rate": 0.01}
}
RULES = ("FedAvg", "FedIF", "influence descent")
KEY = ("data", "strategy", "examples", "draw")
FIGURES = ("others", "members", "covered", "shares_covered", "half_width", "error", "share_half")


class Contributions:
    """Contributions to the loss on one set by block ``[b, m]``, and on another one ``[m]``."""

    def __init__(self, held_out: Validation, others: Validation) -> None:
        self._held_out, self._others = held_out, others
        self._blocks = block_validations(held_out)
        self.weights = block_weights(self._blocks)
        self.by_block = torch.zeros(len(self._blocks), MEMBERS, dtype=torch.float64)
        self.elsewhere = torch.zeros(MEMBERS, dtype=torch.float64)

    @property
    def values(self) -> Tensor:
        """Contributions on the held-out set."""
        return self.by_block.sum(dim=0)

    def take(self, step: AuditStep) -> None:
        """Attribute a round."""
        start, updates = step.updates.global_params, step.updates.client_updates
        own, elsewhere = (
            path_attribution(data.gradient, start, updates, step.coefficients)
            for data in (self._held_out, self._others)
        )
        middle = start + (step.coefficients.to(updates) @ updates) / 2
        along = torch.stack([slopes(updates, block.gradient(middle)) for block in self._blocks])
        self.by_block += block_contributions(along, step.coefficients, self.weights, own)
        self.elsewhere += elsewhere


@cache
def task_of(data: str, data_dir: str) -> AuditTask:
    """Return the members and their data."""
    settings: dict[str, Scalar] = {
        "dataset": data,
        "num-clients": MEMBERS,
        "num-server-rounds": ROUNDS,
        "local-epochs": 1,
        "device": "cpu",
        **OF_DATA.get(data, {}),
        **({"data-dir": data_dir} if data_dir else {}),
    }
    return AuditTask(RunConfig.from_run_config(default_run_config() | settings))


def measure(data_dir: str, cell: Row) -> list[Row]:
    """Return the figures of one draw; none where too few examples are left beside it."""
    data, strategy = str(cell["data"]), str(cell["strategy"])
    examples, draw = int(str(cell["examples"])), int(str(cell["draw"]))
    task = task_of(data, data_dir)
    test = task.dataset.test
    order = numpy_generator("coverage", draw).permutation(len(test.labels))
    chosen, rest = order[:examples], order[examples : examples + MOST_OTHERS]
    if len(rest) < LEAST_OTHERS * examples:
        return []
    held_out, others = (
        Validation(
            task.new_model(draw),
            task.transformed(to_pixels(test.images[rows], task.dataset.max_value)),
            torch.from_numpy(test.labels[rows].copy()),
            device="cpu",
        )
        for rows in (np.sort(chosen), np.sort(rest))
    )
    rule, found = STRATEGIES[strategy](held_out), Contributions(held_out, others)
    federate(task, task.members, seed=draw, rule=rule, watchers=[found])
    by_block, weights = found.by_block.numpy(), found.weights.numpy()
    widths, share_widths = (
        half_widths(by_block, weights),
        share_half_widths(by_block, by_block, weights),
    )
    errors = (found.values - found.elsewhere).abs().numpy()
    ours, theirs = (
        values.clamp_min(0) / max(float(values.clamp_min(0).sum()), float(values.sum()))
        for values in (found.values, found.elsewhere)
    )
    share_errors = (ours - theirs).abs().numpy()
    covered, shares_covered = (
        int((errors <= widths).sum()),
        int((share_errors <= share_widths).sum()),
    )
    means = [float(values.mean()) for values in (widths, errors, share_widths)]
    figures = [len(rest), MEMBERS, covered, shares_covered, *(f"{mean:.5g}" for mean in means)]
    return [dict(zip(FIGURES, figures, strict=True))]


def attainable(examples: int, others: int) -> float:
    """Return what a perfect interval covers, whose target is measured on so many others."""
    return 2 * float(norm.cdf(norm.ppf(0.975) / math.sqrt(1 + examples / others))) - 1


def main(
    data: Annotated[str, typer.Option(help="digits, fashion-mnist or both")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST is")] = "",
    sizes: Annotated[str, typer.Option(help="held-out examples")] = "60,120,300,600",
    draws: Annotated[int, typer.Option(min=1, help="held-out sets for each")] = 20,
) -> None:
    """Measure what the rows lack, and print a table of all."""
    points = product(data.split(","), range(draws), map(int, sizes.split(",")), RULES)
    cells: list[Row] = [
        dict(zip(KEY, (name, rule, size, draw), strict=True)) for name, draw, size, rule in points
    ]
    fill(CSV, cells, partial(measure, data_dir))
    groups = defaultdict(list)
    for row in read_rows(CSV):
        groups[row["data"], row["strategy"], int(row["examples"])].append(row)
    lines = []
    for (name, rule, size), rows in sorted(groups.items()):
        shown = [np.mean([float(row[figure]) for row in rows]) for figure in FIGURES]
        shares = (shown[2] / MEMBERS, shown[3] / MEMBERS, attainable(size, int(shown[0])))
        lines.append([name, rule, str(size), str(len(rows)), *(f"{share:.0%}" for share in shares)])
    heading = ["data", "rule", "held out", "draws", "covered", "shares covered", "attainable"]
    typer.echo("\n".join(ResultTable("Coverage", heading, lines, num_labels=2).to_markdown()))


if __name__ == "__main__":
    typer.run(main)
