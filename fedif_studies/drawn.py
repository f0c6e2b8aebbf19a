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

from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.rows import read_rows
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.audit.cases import HONEST
from fedif_studies.audit.federation import Watcher, federate
from fedif_studies.audit.findings import pearson, spearman
from fedif_studies.audit.members import AuditTask, Member
from fedif_studies.audit.published import ComFedSV
from fedif_studies.audit.retraining import train_coalitions
from fedif_studies.audit.valuations import PaidPath, Summed
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "drawn.csv"
FEDERATIONS = ((100, 10), (12, 4))  # Members, and how many are drawn for a round.
CASES = (HONEST, "label noise")
FEW = 12  # Members of whom all coalitions are looked at.
COALITIONS, AT_ONCE = 2048, 256
CEILING = "another seed's retraining"


@cache
def task_of(members: int) -> AuditTask:
    """Return data, model and splits."""
    own: dict[str, Scalar] = {
        "num-clients": members,
        "num-server-rounds": 30,
        "local-epochs": 1,
        "device": "cpu",
    }
    return AuditTask(RunConfig.from_run_config(default_run_config() | own))


def people(members: int, case: str) -> list[Member]:
    """Return the members; in the second case half of them have wrong labels."""
    task = task_of(members)
    return task.members if case == HONEST else task.with_attack("label-noise", task.marked(0, 0.5))


def slopes(masks: Tensor, utilities: Tensor) -> Tensor:
    """Return what a member adds to a coalition ``[n]``: least squares on ``masks`` [c, n]."""
    design = torch.cat([torch.ones(len(masks), 1), masks], dim=1).double()
    found: Tensor = torch.linalg.lstsq(design, utilities[:, None]).solution
    return found[1:, 0]


@cache
def retrained(members: int, case: str, seed: int) -> Tensor:
    """Return the members' Banzhaf values ``[n]``: by how much each lowers the test loss."""
    generator = torch_generator("drawn-coalitions", members, seed)
    random = torch.rand(COALITIONS, members, generator=generator) < 0.5
    masks = all_coalitions(members) if members <= FEW else random
    task, own = task_of(members), people(members, case)
    trained = (train_coalitions(task, own, some, seed=seed) for some in torch.split(masks, AT_ONCE))
    losses = [task.server.test.evaluate(params).loss for some in trained for params in some]
    return slopes(masks, -torch.tensor(losses, dtype=torch.float64))


def measure(cell: Row) -> list[Row]:
    """Run a federation; return how each valuation of it agrees with retraining."""
    members, drawn, seed = (int(str(cell[key])) for key in ("members", "drawn", "seed"))
    case = str(cell["case"])
    own, path, completed = people(members, case), PaidPath(), ComFedSV()
    turns = Summed(lambda step: torch.ones(len(step.updates.client_ids), dtype=torch.float64))
    looking: list[Watcher] = [path, turns, *([completed] if members <= FEW else [])]
    federate(task_of(members), own, seed=seed, watchers=looking, per_round=drawn)
    values = {
        "number of examples (control)": torch.tensor([m.claimed for m in own]).double(),
        "times drawn (control)": turns.values,
        "sum of path attribution": path.values,
        "its mean per draw": path.values / turns.values.clamp_min(1.0),
        CEILING: retrained(members, case, 1),
    }
    if members <= FEW:
        values["ComFedSV, completed"] = completed.values
    truth = retrained(members, case, 0)
    return [
        {
            "valuation": name,
            "pearson": f"{pearson(found, truth):.4f}",
            "spearman": f"{spearman(found, truth):.4f}",
        }
        for name, found in values.items()
    ]


def table() -> ResultTable:
    """Return by valuation the mean and range of Pearson's correlation over seeds."""
    columns = list(product(FEDERATIONS, CASES))
    rows = read_rows(CSV)
    lines = []
    for name in dict.fromkeys(row["valuation"] for row in rows):
        line = [name]
        for (members, drawn), case in columns:
            at = (str(members), str(drawn), case, name)
            keys = ("members", "drawn", "case", "valuation")
            found = [float(r["pearson"]) for r in rows if tuple(r[k] for k in keys) == at]
            shown = f"{mean(found):.2f} ({min(found):.2f}, {max(found):.2f})" if found else "-"
            line.append(shown)
        lines.append(line)
    heading = ["", *(f"{drawn} of {members}, {case}" for (members, drawn), case in columns)]
    return ResultTable("Agreement with retraining", heading, lines, num_labels=1)


def main(
    seeds: Annotated[int, typer.Option(min=0, help="the seeds 0, 1 ...; 0: measure nothing")] = 5,
) -> None:
    """Measure what is missing, and print the table."""
    cells: list[Row] = [
        {"members": members, "drawn": drawn, "case": case, "seed": seed}
        for (members, drawn), case, seed in product(FEDERATIONS, CASES, range(seeds))
    ]
    fill(CSV, cells, measure)
    print(*table().to_markdown(), sep="\n")


if __name__ == "__main__":
    typer.run(main)
