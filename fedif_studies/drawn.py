"""Members that are drawn sometimes: sums and means beside retraining, ``-m fedif_studies.drawn``.

A hundred members on digits with ten drawn a round, and twelve with four, 30 rounds, FedAvg's
weights; honest, or half of them with wrong labels. A line of ``docs/results/drawn.csv`` tells how a
valuation agrees with retraining: with the Banzhaf values of federations trained from scratch, all
members of a coalition in every round. They are the least-squares slopes of the test loss over all
coalitions of twelve members, or over some thousand random ones of a hundred.
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
from fedif_studies.audit.retraining import train_coalitions
from fedif_studies.audit.valuations import comfedsv, path, summed
from fedif_studies.lab.commands import Again, finish, run_study
from fedif_studies.lab.filling import fill
from fedif_studies.lab.table import pivot
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "drawn.csv"
FEDERATIONS = ((100, 10), (12, 4))  # Members, and how many are drawn for a round.
CASES = (HONEST, "label noise")
FEW = 12  # All coalitions of so many members are looked at.
COALITIONS = 2048  # Random ones of more members.
AT_ONCE = 256


@cache
def task_of(members: int) -> AuditTask:
    """Return data, model and splits."""
    return AuditTask.of(num_clients=members, num_server_rounds=30)


def people(members: int, case: str) -> list[AuditMember]:
    """Return the members; in the second case half of them have wrong labels."""
    task = task_of(members)
    if case == HONEST:
        return task.members
    half_mislabelled = case_of_attack("label-noise", 0.5)
    return half_mislabelled(task, 0)


def slopes(masks: Tensor, utilities: Tensor) -> Tensor:
    """Return what a member adds to a coalition ``[n]``: least squares on ``masks`` [c, n]."""
    design = torch.cat([torch.ones(len(masks), 1), masks], dim=1).double()
    solution: Tensor = torch.linalg.lstsq(design, utilities[:, None]).solution
    return solution[1:, 0]  # Without the intercept.


@cache
def retrained(members: int, case: str, seed: int) -> Tensor:
    """Return the members' Banzhaf values ``[n]``: by how much each lowers the test loss."""
    if members <= FEW:
        masks = all_coalitions(members)
    else:
        generator = torch_generator("drawn-coalitions", members, seed)
        masks = torch.rand(COALITIONS, members, generator=generator) < 0.5
    task = task_of(members)
    federation = people(members, case)
    losses = []
    for at_once in torch.split(masks, AT_ONCE):
        trained = train_coalitions(task, federation, at_once, seed=seed)
        losses += [task.server.test.evaluate(params).loss for params in trained]
    return slopes(masks, -torch.tensor(losses, dtype=torch.float64))


def measure(cell: Row) -> list[Row]:
    """Run a federation; return how each valuation of it agrees with retraining."""
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
    """Return by valuation the mean and range of Pearson's correlation over seeds."""
    values = []
    for row in read_rows(CSV):
        column = f"{row['drawn']} of {row['members']}, {row['case']}"
        line = (row["valuation"],)
        values.append((line, column, float(row["pearson"])))
    return pivot("Agreement with retraining", ["valuation"], values, _shown_range)


def _shown_range(of_seeds: list[float]) -> str:
    """Return the mean over seeds, and the least and the largest of them."""
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
    print(*table().to_markdown(), sep="\n")
    finish(complete)


if __name__ == "__main__":
    run_study(main)
