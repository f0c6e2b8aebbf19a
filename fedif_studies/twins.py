"""Members with the same data, found by what is left of their updates: ``-m fedif_studies.twins``.

An update of length 1 less the round's mean is what a member has of its own. Summed over rounds,
noise that differs averages out; what comes of the same data does not. A line of
``docs/results/twins.csv`` tells how like the most alike other member a member is, by the cosine of
these sums: in honest federations (twenty members on digits, 30 rounds, five Dirichlet alphas) and
where one member appears as three with noise. It prints how many are found at thresholds.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn.functional import normalize

from fedif_flower.run.rows import read_rows
from fedif_flower.tables import ResultTable
from fedif_studies.audit.cases import HONEST
from fedif_studies.audit.federation import AuditStep, federate
from fedif_studies.audit.games import GAMES
from fedif_studies.audit.members import AuditTask
from fedif_studies.games import config
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "twins.csv"
TWINS = "three identities, same data, noise"
ALPHAS, THRESHOLDS = (0.1, 0.3, 0.5, 1.0, 100.0), (0.9, 0.94, 0.96, 0.97, 0.98)


class OwnParts:
    """Sums what each update has of its own; ``values``: likeness to the most alike other."""

    def __init__(self) -> None:
        self._sums = torch.zeros(0)

    def take(self, step: AuditStep) -> None:
        """Add a round."""
        units = normalize(step.updates.client_updates.double(), dim=1, eps=1e-30)
        if not len(self._sums):
            self._sums = units.new_zeros(step.num_members, units.shape[1])
        self._sums[list(step.updates.client_ids)] += units - units.mean(dim=0)

    @property
    def values(self) -> Tensor:
        """Cosines ``[m]`` with the most alike other member."""
        units = normalize(self._sums, dim=1, eps=1e-30)
        return (units @ units.T).fill_diagonal_(-1.0).amax(dim=1)


def measure(cell: Row) -> list[Row]:
    """Run a federation; return a line for each member."""
    seed, epochs, alpha, case = (str(value) for value in cell.values())
    settings = config(int(epochs)).replace(dirichlet_alpha=float(alpha), seed=int(seed))
    task, watcher = AuditTask(settings), OwnParts()
    members = task.members if case == HONEST else GAMES[TWINS].members(task, [10])
    federate(task, members, seed=int(seed), watchers=[watcher])
    return [
        {"marked": int(member.is_marked), "likeness": f"{likeness:.4f}"}
        for member, likeness in zip(members, watcher.values.tolist(), strict=True)
    ]


def table() -> ResultTable:
    """Return by threshold the shares of honest members and of identities that lie above."""
    rows = read_rows(CSV)
    kinds = {
        "honest members": [r for r in rows if r["case"] == HONEST],
        "of them, alpha = 0.1": [r for r in rows if r["case"] == HONEST and r["alpha"] == "0.1"],
        "others beside identities": [r for r in rows if r["case"] == TWINS and r["marked"] == "0"],
        "identities": [r for r in rows if r["case"] == TWINS and r["marked"] == "1"],
    }
    lines = []
    for name, own in kinds.items():
        likeness = [float(row["likeness"]) for row in own]
        shares = [sum(v > t for v in likeness) / max(len(own), 1) for t in THRESHOLDS]
        lines.append([name, str(len(own)), *(f"{share:.1%}" for share in shares)])
    heading = ["", "number", *(f"above {threshold:g}" for threshold in THRESHOLDS)]
    return ResultTable("Likeness", heading, lines, num_labels=1)


def main(
    seeds: Annotated[int, typer.Option(min=0, help="the seeds 0, 1 ...; 0: measure nothing")] = 3,
) -> None:
    """Measure what is missing, and print the table."""
    runs = product(range(seeds), (1, 5), ALPHAS, (HONEST, TWINS))
    cells: list[Row] = [
        {"seed": seed, "epochs": epochs, "alpha": f"{alpha:g}", "case": case}
        for seed, epochs, alpha, case in runs
    ]
    fill(CSV, cells, measure)
    print(*table().to_markdown(), sep="\n")


if __name__ == "__main__":
    typer.run(main)
