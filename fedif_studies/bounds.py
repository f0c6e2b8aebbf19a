"""What bounds on a round's step cost among honest clients, where training swings.

Flower's quickstart with five clients at a high learning rate, by FedAvg, and by FedIF with its
bounds (the default) and without. The model is an example's:
``PYTHONPATH=examples/quickstart python -m fedif_studies.bounds``. The rows also have
other tasks and attacks, which an earlier revision measured.
"""

from __future__ import annotations

import statistics
from functools import cache
from typing import Annotated

import torch
import typer
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedif_flower import ClientSite, Site, Task, client_app
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_flower.tasks.config import OWN
from fedif_studies.lab.run import federated, fill
from fedif_studies.rows import RESULTS, Row
from quickstart.task import Net

OUTPUT = RESULTS / "bounds.csv"
CLIENTS, HELD_OUT, RATE = 5, 597, 0.1
NAME = "quickstart-cnn"
CASE = f"{NAME}, lr {RATE}"
BASELINE = ("fedavg", "off")
CONTENDERS = (BASELINE, ("fedif", "on"), ("fedif", "off"))


@cache
def quickstart() -> Task:
    """Return the task: scikit-learn's digits, enlarged, in an order of their own."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1  # [n, 1, 8, 8]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    inputs = nn.functional.interpolate(images, size=(32, 32)).expand(-1, 3, -1, -1)[order]
    targets, half = torch.tensor(digits.target)[order], HELD_OUT // 2

    def client_data(site: ClientSite) -> tuple[Tensor, Tensor]:
        own = slice(HELD_OUT + site.partition_id, None, site.num_partitions)
        return inputs[own], targets[own]

    def validation_data(_: Site) -> tuple[Tensor, Tensor]:
        return inputs[:half], targets[:half]

    def data_to_test(_: Site) -> tuple[Tensor, Tensor]:
        return inputs[half:HELD_OUT], targets[half:HELD_OUT]

    return Task(
        name=NAME,
        model=Net,
        client_data=client_data,
        validation_data=validation_data,
        test_data=data_to_test,
        loss=nn.functional.cross_entropy,
    )


def measure(cell: Row) -> list[Row]:
    """Return accuracies in percent, and how many rounds did not move the model."""
    task = quickstart()
    settings: dict[str, Scalar] = {
        **{"task": OWN + NAME, "num-clients": CLIENTS, "fraction-train": 1.0},
        **{"num-server-rounds": 40, "local-epochs": 1, "batch-size": 32, "learning-rate": RATE},
        **{"strategy": str(cell["strategy"]), "seed": int(str(cell["seed"]))},
        **({"update-clipping": 0.0} if cell["bounds"] == "off" else {}),
    }
    with federated(settings, LocalGrid(client_app(task), CLIENTS), task=task) as run:
        rows = run.rounds.read()[1:]
    values = [100 * float(row["test_accuracy"]) for row in rows]
    return [
        {
            "last": f"{values[-1]:.2f}",
            "last-ten": f"{statistics.mean(values[-10:]):.2f}",
            "least-of-ten": f"{min(values[-10:]):.2f}",
            "unmoved": sum(row["status"] != "advanced" for row in rows),
        }
    ]


def table(seeds: int) -> ResultTable:
    """Return means over seeds of the last accuracy, and what lies between it and FedAvg's."""
    last = {
        (row["strategy"], row["bounds"], int(row["seed"])): float(row["last"])
        for row in read_rows(OUTPUT)
        if row["case"] == CASE
    }
    lines = []
    for contender in CONTENDERS:
        own = [last[*contender, seed] for seed in range(seeds)]
        gains = [value - last[*BASELINE, seed] for seed, value in enumerate(own)]
        figures = [f"{statistics.mean(own):.1f}", f"{statistics.mean(gains):+.2f}"]
        lines.append([*contender, *figures, f"{min(gains):+.2f}"])
    heading = ["strategy", "bounds", "last round", "beside FedAvg", "worst seed beside"]
    return ResultTable(CASE, heading, lines, num_labels=2)


def main(seeds: Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ...")] = 5) -> None:
    """Measure what is missing, then print the means and the worst seed beside FedAvg."""
    cells: list[Row] = [
        {"case": CASE, "strategy": strategy, "bounds": bounds, "seed": seed}
        for seed in range(seeds)
        for strategy, bounds in CONTENDERS
    ]
    fill(OUTPUT, cells, measure)
    print(*table(seeds).to_markdown(), sep="\n")


if __name__ == "__main__":
    typer.run(main)
