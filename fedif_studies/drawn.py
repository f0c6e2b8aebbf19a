"""Study of valuations if members are drawn only in some rounds, ``python -m fedif_studies.drawn``.

A hundred members on digits, of whom ten are drawn for a round, or twelve, of whom four are drawn,
train for 30 rounds with FedAvg's weights. All are honest, or half of them have wrong labels. A line
of ``docs/results/drawn.csv`` says how well a valuation agrees with retraining: with the Banzhaf
values of a game in which each coalition trains a federation from scratch, with all its members in
every round. These values are least-squares slopes of the test loss, over all coalitions of twelve
members, or over 2,048 random coalitions of a hundred.
"""

from __future__ import annotations

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
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.audit.cases import HONEST, case_of_attack
from fedif_studies.audit.federation import federate
from fedif_studies.audit.findings import CEILING, pearson, spearman
from fedif_studies.audit.members import AuditMember, AuditTask
from fedif_studies.audit.retraining import evaluate_coalitions
from fedif_studies.audit.valuations import comfedsv, path, summed
from fedif_studies.lab.commands import Again, finish, run_study
from fedif_studies.lab.filling import fill
from fedif_studies.lab.table import pivot, print_markdown
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "drawn.csv"
FEDERATIONS = ((100, 10), (12, 4))  # The members, and how many of them are drawn for a round.
CASES = (HONEST, "label noise")
FEW = 12  # With at most so many members, all coalitions are trained.
COALITIONS = 2048  # With more members, so many random coalitions are trained.


@cache
def task_of(members: int) -> AuditTask:
    """Return the data, the model and the splits."""
    return AuditTask.of(num_clients=members, num_server_rounds=30)


def people(members: int, case: str) -> list[AuditMember]:
    """Return the members; unless they are all honest, half of them have wrong labels."""
    task = task_of(members)
    if case == HONEST:
        return task.members
    half_mislabelled = case_of_attack("label-noise", 0.5)
    return half_mislabelled(task, 0)


def slopes(masks: Tensor, utilities: Tensor) -> Tensor:
    """Return by how much each member raises a coalition's utility, ``[n]``, by least squares.

    Parameters
    ----------
    masks : Tensor
        ``[c, n]``, bool: whether a member is in a coalition.
    utilities : Tensor
        ``[c]``, float64: the coalitions' utilities.
    """
    design = torch.cat([torch.ones(len(masks), 1), masks], dim=1).double()
    solution: Tensor = torch.linalg.lstsq(design, utilities[:, None]).solution
    return solution[1:, 0]  # Without the intercept.


@cache
def retrained(members: int, case: str, seed: int) -> Tensor:
    """Return the members' Banzhaf values ``[n]``, from coalitions trained from scratch.

    A value is by how much a member lowers the test loss of a coalition on average.
    """
    if members <= FEW:
        masks = all_coalitions(members)
    else:
        generator = torch_generator("drawn-coalitions", members, seed)
        # Each coalition has the same chance: in a Banzhaf value, all coalitions count alike.
        masks = torch.rand(COALITIONS, members, generator=generator) < 0.5
    task = task_of(members)
    federation = people(members, case)
    evaluations = evaluate_coalitions(task, federation, masks, seed=seed)
    losses = [evaluation.loss for evaluation in evaluations]
    return slopes(masks, -torch.tensor(losses, dtype=torch.float64))


def measure(cell: Row) -> list[Row]:
    """Run a federation; return a row for each valuation with its agreement with retraining."""
    members = cell["members"]
    case = cell["case"]
    federation = people(members, case)
    truth = retrained(members, case, 0)
    task = task_of(members)
    _, steps = federate(task, federation, seed=cell["seed"], per_round=cell["drawn"])
    added_up = summed(path("simpson"))(steps)
    turns = summed(lambda step: torch.ones(len(step.rows), dtype=torch.float64))(steps)
    claimed = [member.claimed for member in federation]
    values = {
        "number of examples (control)": torch.tensor(claimed).double(),
        "times drawn (control)": turns,
        "sum of path attribution": added_up,
        "its mean per draw": added_up / turns.clamp_min(1.0),
        CEILING: retrained(members, case, 1),
    }
    if members <= FEW:
        values["ComFedSV, completed"] = comfedsv(steps)
    rows: list[Row] = []
    for name, valuation in values.items():
        row = {
            "valuation": name,
            "pearson": f"{pearson(valuation, truth):.4f}",
            "spearman": f"{spearman(valuation, truth):.4f}",
        }
        rows.append(row)
    return rows


def table() -> ResultTable:
    """Return a table of Pearson correlations with retraining: means and ranges over seeds."""
    values = []
    for row in read_rows(CSV):
        column = f"{row['drawn']} of {row['members']}, {row['case']}"
        line = (row["valuation"],)
        values.append((line, column, float(row["pearson"])))
    return pivot("Agreement with retraining", ["valuation"], values, _shown_range)


def _shown_range(of_seeds: list[float]) -> str:
    """Return as text the mean over seeds, and the least and the largest value.

    Some figures do not depend on the federation's seed, as that of retraining compared with itself:
    these have no range.
    """
    if len(set(of_seeds)) == 1:
        return f"{of_seeds[0]:.2f}"
    return f"{mean(of_seeds):.2f} ({min(of_seeds):.2f}, {max(of_seeds):.2f})"


def main(
    seeds: Annotated[int, typer.Option(min=0, help="the seeds 0, 1 ...; 0: measure nothing")] = 5,
    again: Again = False,
) -> None:
    """Measure what is missing, and print the table."""
    cells: list[Row] = []
    for (members, drawn), case, seed in product(FEDERATIONS, CASES, range(seeds)):
        cells.append({"members": members, "drawn": drawn, "case": case, "seed": seed})
    complete = fill(CSV, cells, measure, again=again)
    print_markdown(table())
    finish(complete)


if __name__ == "__main__":
    run_study(main)
