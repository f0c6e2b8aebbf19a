"""What wrong held-out labels do to ranks and to pay, and what correcting the loss brings.

``python -m fedif_studies.held_out`` replaces a share of the held-out labels by other classes, runs
ten members with it, and takes the held-out set as it is, without the examples that look wrong, or
with the loss corrected for the estimated share. It adds a row for each run that
``docs/results/held-out.csv`` has not yet, and prints a table of all. Contributions under FedAvg are
those of one and the same training, whatever the labels: what differs from the run with right ones
is money at another member.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from fedif_flower.client.app import task_app
from fedif_flower.devices import torch_threads
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import HELD_OUT_KEY
from fedif_flower.run.held_out import NOISE
from fedif_flower.run.results import load
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_flower.tasks.images import settled
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import Site, Task
from fedif_flower.valuation import Validation
from fedif_flower.valuation.held_out import vet
from fedif_studies.lab.commands import Again
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "held-out.csv"
MOST_TEST = 2000
LEAST_TEST = 100
OF_DATA: Mapping[str, Mapping[str, Scalar]] = {
    "digits": {"num-server-rounds": 25},
    "fashion-mnist": {"num-server-rounds": 15, "model": "mlp", "learning-rate": 0.01},
}
USUAL: Mapping[str, Scalar] = {
    "num-clients": 10,
    "fraction-train": 1.0,
    "local-epochs": 1,
    "malicious-fraction": 0.3,
    "device": "cpu",
    "checkpoint-every": 0,
    "eval-every": 5,
    "run-name": "run",
}
STRATEGIES: Mapping[str, Mapping[str, Scalar]] = {
    "fedif": {},
    "fedavg": {"attribution": "simpson"},
}
AS_IT_IS, LEFT_OUT, CORRECTED = TREATMENTS = ("as it is", "left out", "corrected")
ATTACKS = ("none", "label-noise")
KEY = ("data", "attack", "strategy", "examples", "wrong", "treatment", "seed")


def with_wrong_labels(labels: Tensor, share: float, num_classes: int, seed: int) -> Tensor:
    """Return labels ``[n]`` of which a share, drawn at random, are other classes."""
    generator = torch_generator("held-out-study-labels", seed)
    rows = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    moved = torch.randint(1, num_classes, (len(rows),), generator=generator)
    wrong = labels.clone()
    wrong[rows] = (labels[rows] + moved) % num_classes
    return wrong


def task_of(config: RunConfig, cell: Row) -> Task:
    """Return the data set's task with so many held-out examples, some labels of which are wrong."""
    task = build_task(config)
    count, seed = int(cell["examples"]), int(cell["seed"])

    def splits(site: Site) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        known: list[Any] = [task.validation_data(site), task.test_data(site)]
        images, labels = (torch.cat(parts) for parts in zip(*known, strict=True))
        order = torch.randperm(len(labels), generator=torch_generator("held-out-study", seed))
        held_out = order[:count]
        test = order[count : count + MOST_TEST]
        wrong = with_wrong_labels(
            labels[held_out], float(cell["wrong"]), task.num_classes or 0, seed
        )
        return (images[held_out], wrong), (images[test], labels[test])

    own = replace(
        task,
        validation_data=lambda site: splits(site)[0],
        test_data=lambda site: splits(site)[1],
        fingerprint=f"{task.fingerprint} {count} {cell['wrong']} {seed}",
    )
    return without_suspects(own, config.seed) if cell["treatment"] == LEFT_OUT else own


def without_suspects(task: Task, seed: int) -> Task:
    """Return a task whose held-out set lacks the examples that look wrong."""
    site = Site(seed)
    images, labels = task.validation_data(site)  # type: ignore[misc]
    judge = Validation(
        task.build_model(seed), task.transformed((images, labels)), loss_fn=task.loss, device="cpu"
    )
    suspects = {one.index for one in vet(judge, build=task.build_model, seed=seed).suspects}
    kept = torch.tensor([i for i in range(len(labels)) if i not in suspects])
    return replace(task, validation_data=lambda _: (images[kept], labels[kept]))


def measure(data_dir: str, cell: Row) -> list[Row]:
    """Return the figures of one run."""
    is_corrected = cell["treatment"] == CORRECTED
    settings: dict[str, Scalar] = {
        **USUAL,
        **OF_DATA[cell["data"]],
        **STRATEGIES[cell["strategy"]],
        "dataset": cell["data"],
        "strategy": cell["strategy"],
        "attack": cell["attack"],
        "seed": int(cell["seed"]),
        "validation.noise": "auto" if is_corrected else "off",
        "validation.vet": is_corrected,
    }
    if data_dir and cell["data"] != "digits":
        settings["data-dir"] = data_dir
    with TemporaryDirectory() as folder, torch_threads(1):
        config = settled(RunConfig.from_run_config({**settings, "output-dir": folder}))
        task = task_of(config, cell)
        grid = LocalGrid(task_app(task), config.num_clients)
        run = load(run_federation(grid, config, task=task))
        found = run.folder.provenance.read()[HELD_OUT_KEY]
        row: dict[str, Any] = {
            "accuracy": run.summary["test_accuracy"],
            "auc": run.summary["detection_auc"],
            "noise": found.get("noise"),
            "low": found.get("low"),
            "high": found.get("high"),
            "corrected": found[NOISE],
            "seconds": found.get("seconds"),
        }
        if cell["strategy"] == "fedavg":
            members = sorted(run.members, key=lambda member: member.partition_id)
            positive = [max(member.contribution or 0.0, 0.0) for member in members]
            total = sum(positive) or 1.0
            liars = sum(v for v, m in zip(positive, members, strict=True) if m.malicious)
            row["liars_share"] = f"{liars / total:.5g}"
            row["shares"] = " ".join(f"{value / total:.5g}" for value in positive)
    return [row]


def cells_of(
    data: Sequence[str], sizes: Sequence[int], wrong: Sequence[float], seeds: int
) -> Iterator[Row]:
    """Yield the cells, small sets first."""
    most = {"digits": 600 - LEAST_TEST}
    for name, size in product(data, sizes):
        if size > most.get(name, size):
            continue
        points = product(range(seeds), ATTACKS, STRATEGIES, wrong, TREATMENTS)
        for seed, attack, strategy, share, treatment in points:
            values = (name, attack, strategy, size, share, treatment, seed)
            yield dict(zip(KEY, values, strict=True))


def moved_money(rows: Sequence[Row]) -> dict[tuple[str, ...], float]:
    """Return by cell how much money is at another member than with right labels, in [0, 1]."""
    clean = {
        _federation(row): _shares(row)
        for row in rows
        if row["shares"] and float(row["wrong"]) == 0 and row["treatment"] == AS_IT_IS
    }
    return {
        tuple(row[name] for name in KEY): sum(
            max(ours - theirs, 0.0)
            for ours, theirs in zip(_shares(row), clean[_federation(row)], strict=True)
        )
        for row in rows
        if row["shares"] and _federation(row) in clean
    }


def _federation(row: Row) -> tuple[str, ...]:
    """Return what two runs have alike whose held-out labels alone differ."""
    return tuple(row[name] for name in ("data", "attack", "examples", "seed"))


def _shares(row: Row) -> list[float]:
    return list(map(float, row["shares"].split()))


def table(rows: Sequence[Row]) -> ResultTable:
    """Return means over seeds by data, attack, size and share of wrong labels."""
    moved = moved_money(rows)
    groups = defaultdict(list)
    for row in rows:
        place = (row["data"], row["attack"], int(row["examples"]), float(row["wrong"]))
        groups[*place, TREATMENTS.index(row["treatment"])].append(row)
    lines = []
    for (data, attack, size, share, treatment), own in sorted(groups.items()):
        money = [moved[key] for row in own if (key := tuple(row[n] for n in KEY)) in moved]
        figures = [
            _mean([row["accuracy"] for row in own if row["strategy"] == "fedif"], 100),
            _mean([row["auc"] for row in own if row["strategy"] == "fedif"], 1, 3),
            _mean([row["liars_share"] for row in own if attack != "none"], 100),
            _mean(money, 100),
            _mean([row["corrected"] for row in own], 1, 2),
        ]
        name = TREATMENTS[treatment]
        lines.append([data, attack, str(size), f"{share:.0%}", name, str(len(own)), *figures])
    heading = ["data", "attack", "held out", "wrong", "taken", "runs"]
    heading += ["accuracy", "AUC", "to liars, %", "moved, %", "corrected for"]
    return ResultTable("Wrong held-out labels", heading, lines, num_labels=5)


def _mean(values: Sequence[Any], unit: float, digits: int = 1) -> str:
    known = [float(value) for value in values if value not in (None, "")]
    return f"{unit * mean(known):.{digits}f}" if known else "-"


def main(
    data: Annotated[str, typer.Option(help="digits, fashion-mnist or both")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST is")] = "",
    sizes: Annotated[str, typer.Option(help="held-out examples")] = "100,500,2000",
    wrong: Annotated[str, typer.Option(help="shares of wrong labels")] = "0,0.1,0.3,0.5",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    again: Again = False,
) -> None:
    """Measure what the rows lack, and print a table of all."""
    shares = [float(share) for share in wrong.split(",")]
    counts = [int(size) for size in sizes.split(",")]
    cells = list(cells_of(data.split(","), counts, shares, seeds))
    fill(CSV, cells, partial(measure, data_dir), again=again)
    typer.echo("\n".join(table(read_rows(CSV)).to_markdown()))


if __name__ == "__main__":
    typer.run(main)
