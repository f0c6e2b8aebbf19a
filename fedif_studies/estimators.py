"""Study of the errors of estimated Shapley values, ``python -m fedif_studies.estimators``.

Federations of ten members on digits run for eight rounds; all are honest, or three misbehave. In
each round, the accuracy of all 1,024 coalitions is measured, which gives the exact values. Then
every estimator draws from this table again and again, with its default of 50 samples. Errors are
relative to the range of a round's exact values, since strategies normalise values by their range
(min-max). A line of ``docs/results/estimators.csv`` has an estimator's means over the rounds and
draws of a federation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from statistics import mean
from typing import Annotated

import torch
import typer
from torch import Tensor

from fedif_flower.run.rows import read_rows
from fedif_flower.seeding import torch_generator
from fedif_flower.tables import ResultTable
from fedif_flower.valuation.shapley import ESTIMATORS, CoalitionMemo, Utility, exact_shapley
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_flower.valuation.shapley.valuation import RoundGame
from fedif_studies.audit.cases import HONEST, case_of_attack
from fedif_studies.audit.federation import federate
from fedif_studies.audit.members import AuditMember, AuditTask
from fedif_studies.lab.commands import Again, finish, run_study
from fedif_studies.lab.filling import fill
from fedif_studies.lab.table import column_mean, grouped, print_markdown
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "estimators.csv"
MEMBERS = 10
ROUNDS = 8
SAMPLES = 50
_ROUNDING = 1e-12  # Values that differ by less are equal: accuracies are counts over examples.
CASES = {HONEST: "", "label noise": "label-noise", "sign flip": "sign-flip"}


@cache
def task() -> AuditTask:
    """Return the data, the model and the splits."""
    return AuditTask.of(num_clients=MEMBERS, num_server_rounds=ROUNDS)


@cache
def games(case: str, seed: int) -> list[Tensor]:
    """Return the accuracy of every coalition ``[2**m]`` in each round of a federation."""
    behaviour = CASES[case]
    members: Sequence[AuditMember] = task().members
    if behaviour:
        members = case_of_attack(behaviour)(task(), seed)
    _, steps = federate(task(), members, seed=seed)
    masks = all_coalitions(MEMBERS)
    return [RoundGame(step.validation, step.updates, "accuracy")(masks) for step in steps]


def lookup(table: Tensor) -> Utility:
    """Return the game in which a coalition's utility is the table's entry at its bits."""
    return lambda masks: table[masks.long() @ 2 ** torch.arange(masks.shape[1])]


def tells_members_apart(table: Tensor) -> bool:
    """Return whether exact values in a game ``[2**m]`` differ: errors are relative to their range.

    They do not, for example, if no coalition's step changes the accuracy.
    """
    exact = exact_shapley(lookup(table), MEMBERS)
    return float(exact.max() - exact.min()) > _ROUNDING


def judge(table: Tensor, estimator: str, draws: int) -> Mapping[str, float]:
    """Return an estimator's figures in a game ``[2**m]`` that tells members apart, over draws.

    Figures are means over the draws: the mean absolute ``error`` and the estimator's own
    ``resolution``, both relative to the range of the exact values; how often all estimates are
    ``alike`` within the resolution; and the number of ``coalitions`` evaluated.
    """
    exact = exact_shapley(lookup(table), MEMBERS)
    spread = float(exact.max() - exact.min())
    figures: dict[str, list[float]] = {"error": [], "resolution": [], "alike": [], "coalitions": []}
    for draw in range(draws):
        utility = CoalitionMemo(lookup(table))
        generator = torch_generator("estimators", draw)
        scores = ESTIMATORS[estimator](utility, MEMBERS, num_samples=SAMPLES, generator=generator)
        figures["error"].append(float((scores.values - exact).abs().mean()) / spread)
        figures["resolution"].append(scores.resolution / spread)
        estimated_spread = float(scores.values.max() - scores.values.min())
        figures["alike"].append(float(estimated_spread <= scores.resolution))
        figures["coalitions"].append(utility.evaluations)
    return {name: mean(values) for name, values in figures.items()}


def measure(cell: Row) -> list[Row]:
    """Return one row: an estimator's mean figures over a federation's rounds.

    Rounds in which all members have the same exact value are left out. There is no row if they have
    in every round.
    """
    tables = list(filter(tells_members_apart, games(cell["case"], cell["seed"])))
    if not tables:
        return []
    of_rounds = [judge(table, cell["estimator"], cell["draws"]) for table in tables]
    row: dict[str, object] = {"samples": SAMPLES}
    for name in of_rounds[0]:
        row[name] = f"{mean(figures[name] for figures in of_rounds):.4g}"
    return [row]


def table() -> ResultTable:
    """Return a table of each estimator's means over all federations."""
    lines = []
    for estimator, rows in grouped(read_rows(CSV), lambda row: row["estimator"]).items():
        line = [
            estimator,
            f"{column_mean(rows, 'error'):.1%}",
            f"{column_mean(rows, 'resolution'):.0%}",
            f"{column_mean(rows, 'alike'):.1%}",
            f"{column_mean(rows, 'coalitions'):.0f}",
        ]
        lines.append(line)
    heading = ["estimator", "error", "counts as none", "rounds without a difference", "coalitions"]
    return ResultTable("Errors of estimators", heading, lines, num_labels=1)


def main(
    seeds: Annotated[int, typer.Option(min=0, help="the seeds 0, 1 ...; 0: measure nothing")] = 3,
    draws: Annotated[int, typer.Option(min=1, help="of each estimator in each round")] = 20,
    again: Again = False,
) -> None:
    """Measure what is missing, and print the table."""
    cells: list[Row] = []
    for case, seed, estimator in product(CASES, range(seeds), ESTIMATORS):
        cells.append({"case": case, "seed": seed, "draws": draws, "estimator": estimator})
    complete = fill(CSV, cells, measure, again=again)
    print_markdown(table())
    finish(complete)


if __name__ == "__main__":
    run_study(main)
