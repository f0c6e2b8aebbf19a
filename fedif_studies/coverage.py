"""Study of how often 95 % intervals cover the contributions to the loss on other examples.

``python -m fedif_studies.coverage`` draws a held-out set from the test split again and again, and
runs a federation of ten members with it. It checks whether the intervals of the members'
contributions and shares (:mod:`fedif_flower.attribution.intervals`) contain the contributions to
the loss on the rest of the test split. The rest is a finite sample itself, whose error the
intervals do not allow for: :func:`attainable` says what a perfect interval would cover. The study
adds a row for each draw that ``docs/results/coverage.csv`` lacks, and prints a table of all rows.

With ``--wrong 0.3``, 30 % of the held-out labels are wrong, but none of the rest. The held-out loss
is taken as it is, or corrected for the share of wrong labels that is estimated from the set itself.
These rows are in ``docs/results/coverage-wrong-labels.csv``. A corrected loss has another scale, so
only the shares can be compared with those of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from fedif_flower.attribution.intervals import half_widths, share_half_widths
from fedif_flower.attribution.path import block_contributions, slopes
from fedif_flower.run.rows import read_rows
from fedif_flower.seeding import numpy_generator
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_flower.valuation import Validation
from fedif_flower.valuation.examination import vet
from fedif_flower.valuation.subsets import block_validations, block_weights
from fedif_studies.audit.federation import STRATEGIES, AuditStep, federate
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.valuations import path, summed
from fedif_studies.held_out.cells import AS_IT_IS, CORRECTED
from fedif_studies.held_out.labels import with_wrong_labels
from fedif_studies.lab.commands import Again, finish, run_study
from fedif_studies.lab.filling import fill
from fedif_studies.lab.lists import names_in, sizes_in
from fedif_studies.lab.table import column_mean, grouped, print_markdown
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "coverage.csv"
WRONG_CSV = RESULTS / "coverage-wrong-labels.csv"
MEMBERS = 10
ROUNDS = 12
MOST_OTHERS = 3000  # At most so many examples of the rest are used.
LEAST_OTHERS = 0.9  # The least size of the rest, relative to the held-out set's.
TEST_EXAMPLES: Mapping[str, int] = {"digits": 600, "fashion-mnist": 10_000}
SIZES = (60, 120, 300, 600)
_USUAL = ",".join(map(str, SIZES))
# Settings with which a draw takes half a minute on one core.
OF_DATA: Mapping[str, Mapping[str, Scalar]] = {
    "digits": {},
    "fashion-mnist": {"model": "mlp", "learning_rate": 0.01},
}
RULES = ("FedAvg", "FedIF", "influence descent")


def by_block(steps: Sequence[AuditStep], blocks: Sequence[Validation], weights: Tensor) -> Tensor:
    """Return the contributions ``[b, m]`` of m members to the loss on each of b blocks.

    Their sums over blocks are the contributions by Simpson's rule, as a run has them.

    Parameters
    ----------
    steps : sequence of AuditStep
        The rounds.
    blocks : sequence of Validation
        The blocks of examples into which the held-out set is divided.
    weights : Tensor
        ``[b]``: the blocks' weights.
    """
    contributions = torch.zeros(len(blocks), MEMBERS, dtype=torch.float64)
    for step in steps:
        middle = step.start + step.vector / 2
        along = torch.stack([slopes(step.rows, block.gradient(middle)) for block in blocks])
        whole = path("simpson")(step)
        contributions += block_contributions(along, step.coefficients, weights, whole)
    return contributions


@cache
def task_of(data: str, data_dir: str) -> AuditTask:
    """Return the members, their data and the model."""
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
    """Run the federation of one draw; return a row with how many intervals cover."""
    examples = cell["examples"]
    draw = cell["draw"]
    task = task_of(cell["data"], data_dir)
    order = numpy_generator("coverage", draw).permutation(len(task.dataset.test))
    rest = order[examples : examples + MOST_OTHERS]
    held_out = held_out_of(task, order[:examples], cell)
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


def held_out_of(task: AuditTask, rows: NDArray[np.int64], cell: Row) -> Validation:
    """Return the held-out set of a draw, with wrong labels and a corrected loss if asked for.

    Parameters
    ----------
    task : AuditTask
        The members' task.
    rows : NDArray
        The set's rows in the test split.
    cell : mapping
        Has ``draw``; if labels are wrong, also their share ``wrong``, and ``treatment``.
    """
    draw = cell["draw"]
    wrong = cell.get("wrong", 0.0)
    if not wrong:
        return task.held_out(rows, draw)
    inputs, labels = task.examples(task.dataset.test, np.sort(rows))
    noisy_labels = with_wrong_labels(labels, wrong, len(task.dataset.classes), draw)
    held_out = Validation(
        task.new_model(draw), task.transformed(inputs), noisy_labels, device=task.config.device
    )
    if cell["treatment"] == AS_IT_IS:
        return held_out
    examined = vet(held_out, build=task.new_model, seed=draw)
    return held_out.with_noise(examined.correction)


def shares_of(values: Tensor) -> Tensor:
    """Return members' shares ``[m]`` of the positive contributions, as a statement has them."""
    positive = values.clamp_min(0)
    return positive / max(float(positive.sum()), float(values.sum()))


def attainable(examples: int, others: int) -> float:
    """Return the share that perfect 95 % intervals cover if targets are measured, in [0, 1].

    Parameters
    ----------
    examples : int
        The number of held-out examples, n.
    others : int
        The number of examples on which the targets are measured.
    """
    # The target's own error makes the difference larger by a factor of sqrt(1 + n / others).
    normal = norm.ppf(0.975) / math.sqrt(1 + examples / others)
    return 2 * float(norm.cdf(normal)) - 1


def most_held_out(data: str) -> int:
    """Return the largest held-out set that leaves a rest of ``LEAST_OTHERS`` times its size."""
    return int(min(TEST_EXAMPLES[data] / (1 + LEAST_OTHERS), MOST_OTHERS / LEAST_OTHERS))


def main(
    data: Annotated[str, typer.Option(help="digits, fashion-mnist or both")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST is")] = "",
    sizes: Annotated[
        str, typer.Option(help=f"held-out examples; default: of {_USUAL} those that the data have")
    ] = "",
    draws: Annotated[int, typer.Option(min=1, help="held-out sets for each")] = 20,
    rules: Annotated[str, typer.Option(help="by what updates are weighed")] = ",".join(RULES),
    wrong: Annotated[float, typer.Option(min=0, max=1, help="share of wrong labels")] = 0.0,
    again: Again = False,
) -> None:
    """Measure what the rows lack, and print a table of all."""
    most = {name: most_held_out(name) for name in names_in("data", data, OF_DATA)}
    of_rules = names_in("rules", rules, STRATEGIES)
    cells = cells_of(sizes_in(sizes, SIZES, most), draws, of_rules, wrong)
    path_of_rows = WRONG_CSV if wrong else CSV
    complete = fill(path_of_rows, cells, partial(measure, data_dir), again=again)
    print_markdown(table(read_rows(path_of_rows)))
    finish(complete)


def cells_of(
    sizes: Mapping[str, Sequence[int]], draws: int, rules: Sequence[str], wrong: float
) -> list[Row]:
    """Return the cells; if labels are wrong, each with the loss as it is and corrected."""
    cells: list[Row] = []
    for name, of_data in sizes.items():
        for draw, size, rule in product(range(draws), of_data, rules):
            cell = {"data": name, "strategy": rule, "examples": size, "draw": draw}
            if wrong:
                cells.append({**cell, "wrong": wrong, "treatment": AS_IT_IS})
                cells.append({**cell, "wrong": wrong, "treatment": CORRECTED})
            else:
                cells.append(cell)
    return cells


def table(measured: Sequence[Row]) -> ResultTable:
    """Return a table of the share of intervals that cover, and of the share that is attainable."""
    groups = grouped(measured, _line_key)
    lines = []
    for (name, rule, fault, size), rows in sorted(groups.items()):
        covered = column_mean(rows, "covered") / MEMBERS
        shares_covered = column_mean(rows, "shares_covered") / MEMBERS
        others = column_mean(rows, "others")
        line = [
            name,
            rule,
            fault or "none",
            str(size),
            str(len(rows)),
            f"{covered:.0%}",
            f"{shares_covered:.0%}",
            f"{attainable(size, int(others)):.0%}",
        ]
        lines.append(line)
    heading = ["data", "rule", "labels wrong", "held out", "draws", "covered", "shares covered"]
    return ResultTable("Coverage", [*heading, "attainable"], lines, num_labels=3)


def _line_key(row: Row) -> tuple[str, str, str, int]:
    """Return the values that the draws of a line share: data, rule, wrong labels and size."""
    fault = ""
    if "wrong" in row:
        fault = f"{float(row['wrong']):.0%}, {row['treatment']}"
    return row["data"], row["strategy"], fault, int(row["examples"])


if __name__ == "__main__":
    run_study(main)
