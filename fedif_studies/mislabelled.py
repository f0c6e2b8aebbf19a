"""How many wrong labels ``fedif inspect`` finds, and what their removal does for the member.

Six members share a data set evenly; member 0 has 10, 30 or 70 % of its labels replaced by other
classes. It ranks its examples by the published gradients, by their own loss, and by ``cleanlab``
(confident learning; a logistic regression on its own pixels, cross-validated). Precision is taken
at the number of labels that are truly wrong. Then the same run is done again: without the examples
whose influence is below 0; without those flagged, as many of the largest loss as there are wrong
labels; and with the flagged looked at, and those of them that are wrong set right. Results are
appended; what is there is not measured again.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

from fedif_consortium.evidence.kept_gradients import kept_rounds, read_kept
from fedif_consortium.member.inspection import inspect_examples
from fedif_consortium.parts import client_parts, run_parts
from fedif_flower.apps import client_app
from fedif_flower.attacks.label_noise import flip_labels
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.images import image_task, settled
from fedif_flower.tasks.task import ClientSite, Data, Site, Task
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row

OUTPUT = RESULTS / "mislabelled.csv"
CLIENTS, FLIPPED = 6, (0.1, 0.3, 0.7)
VALIDATION = 1000  # Examples of the server at most.
Pair = tuple[Tensor, Tensor]
RANKED = ("influence", "loss", "neighbours", "cleanlab")  # Precision at the number of wrong ones.
RUNS = ("", "without_harmful", "without_largest_loss", "mended")


def main(
    dataset: Annotated[str, typer.Option(help="digits, fashion-mnist ...")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where its files are")] = "",
    strategy: Annotated[str, typer.Option(help="whose weights the members have")] = "fedavg",
    rounds: Annotated[int, typer.Option(min=1, help="of each run")] = 10,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    examples: Annotated[int, typer.Option(min=0, help="of each member at most; 0: all")] = 0,
) -> None:
    """Measure what is missing."""
    cells: list[Row] = [
        {"dataset": dataset, "strategy": strategy, "seed": seed, "flipped": share}
        for share in FLIPPED
    ]
    fill(OUTPUT, cells, partial(measure, data_dir, rounds, examples))


def measure(data_dir: str, rounds: int, examples: int, cell: Row) -> list[Row]:
    """Return a row: a run, what is found of member 0, and the run again without it."""
    seed, share = int(str(cell["seed"])), float(str(cell["flipped"]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = RunConfig.from_run_config(
            {
                "dataset": str(cell["dataset"]),
                "data-dir": data_dir,
                "model": "mlp",
                "strategy": str(cell["strategy"]),
                "num-clients": CLIENTS,
                "fraction-train": 1.0,
                "num-server-rounds": rounds,
                "eval-every": rounds,
                "dirichlet-alpha": 1000.0,
                "attribution": "simpson",
                "gradients.publish": True,
                "checkpoint-every": 0,
                "device": "cpu",
                "seed": seed,
                "output-dir": name,
                "run-name": "before",
            },
            run_parts(),
        )
        task, wrong = noisy_task(config, share, examples)
        before = run(config, task, folder / "gradients")
        data = task.load("client_data", ClientSite(seed, config.data_path, 0, CLIENTS))
        assert isinstance(data, tuple)
        kept = map(read_kept, kept_rounds(folder / "gradients"))
        found = inspect_examples(task, data, kept, "cpu")
        largest = torch.zeros(len(wrong), dtype=torch.bool)
        largest[found.order[: int(wrong.sum())]] = True
        again = {
            "harmful": without(task, ~found.harmful),
            "largest": without(task, ~largest),
            "mended": mended(task, noisy_task(config, 0.0, examples)[0], largest),
        }
        runs = [before] + [
            run(config.replace(run_name=name), changed, folder / "again")
            for name, changed in again.items()
        ]
        assert found.agreement is not None
        ranked = (found.influence, -found.losses, found.agreement, quality(data))
        own = [f"{contributions(run_dir)[0]:.4g}" for run_dir in runs]
        names = ("contribution", "without_harmful", "without_largest_loss", "largest_loss_mended")
        ends = [f"{accuracy(run_dir):.4g}" for run_dir in runs]
        return [
            {
                **{"examples": len(wrong), "wrong": int(wrong.sum())},
                **{n: f"{precision(s, wrong):.4g}" for n, s in zip(RANKED, ranked, strict=True)},
                "harmful": int(found.harmful.sum()),
                "harmful_wrong": int((found.harmful & wrong).sum()),
                "others": f"{contributions(before)[1]:.4g}",
                **dict(zip(names, own, strict=True)),
                **{f"accuracy_{n}".rstrip("_"): v for n, v in zip(RUNS, ends, strict=True)},
            }
        ]


def noisy_task(config: RunConfig, share: float, examples: int) -> tuple[Task, Tensor]:
    """Return the task with member 0's labels changed, and which ``[n]`` are wrong."""
    task = image_task(settled(config))
    drawn = torch_generator("mislabelled", config.seed, round(100 * share))
    state = drawn.get_state()

    def client_data(site: ClientSite) -> Data:
        inputs, labels = own(site)
        if site.partition_id == 0:
            labels = flip_labels(labels, task.num_classes or 0, share, drawn.set_state(state))
        return inputs, labels

    def own(site: ClientSite) -> Pair:
        inputs, labels = pair_of(task, site)
        count = examples or len(labels)
        return inputs[:count], labels[:count]

    def validation_data(site: Site) -> Data:
        inputs, labels = task.validation_data(site)  # type: ignore[misc]
        return inputs[:VALIDATION], labels[:VALIDATION]

    site = ClientSite(config.seed, config.data_path, 0, CLIENTS)
    noisy: Pair = client_data(site)  # type: ignore[assignment]
    changed = replace(task, client_data=client_data, validation_data=validation_data)
    return changed, noisy[1] != own(site)[1]


def pair_of(task: Task, site: ClientSite) -> Pair:
    """Return a client's images and labels."""
    pair: Pair = task.client_data(site)  # type: ignore[assignment]
    return pair


def without(task: Task, kept: Tensor) -> Task:
    """Return the task in which member 0 has the kept ``[n]`` of its examples alone."""

    def client_data(site: ClientSite) -> Data:
        inputs, labels = pair_of(task, site)
        if site.partition_id == 0:
            return inputs[kept], labels[kept]
        return inputs, labels

    return replace(task, client_data=client_data)


def mended(task: Task, right: Task, looked_at: Tensor) -> Task:
    """Return the task in which member 0 has another's labels of the examples ``[n]`` looked at."""

    def client_data(site: ClientSite) -> Data:
        inputs, labels = pair_of(task, site)
        if site.partition_id == 0:
            labels = torch.where(looked_at, pair_of(right, site)[1], labels)
        return inputs, labels

    return replace(task, client_data=client_data)


def run(config: RunConfig, task: Task, gradients: Path) -> Path:
    """Run a federation in this process; member 0 keeps what is published."""
    own = {0: {"gradients-dir": str(gradients)}}
    grid = LocalGrid(client_app(task, client_parts()), CLIENTS, node_configs=own)
    return run_federation(grid, config, task=task, parts=run_parts())


def precision(scores: Tensor, wrong: Tensor) -> float:
    """Return the share of wrong ones among as many of lowest score as there are."""
    first = scores.argsort(stable=True)[: int(wrong.sum())]
    return float(wrong[first].double().mean())


def quality(data: Pair) -> Tensor:
    """Return cleanlab's score ``[n]`` of each label; low: likely wrong."""
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    inputs, labels = (
        values.flatten(1).numpy() if values.dim() > 1 else values.numpy() for values in data
    )
    model = LogisticRegression(max_iter=200)
    predicted: NDArray[np.float64] = cross_val_predict(
        model, inputs, labels, cv=5, method="predict_proba"
    )
    return torch.from_numpy(get_label_quality_scores(labels, predicted))


def contributions(run_dir: Path) -> tuple[float, float]:
    """Return what member 0 contributed over all rounds, and the other members' mean, in nats."""
    sums = [0.0] * CLIENTS
    for row in RunFolder(run_dir).attribution.read():
        sums[int(row["partition_id"])] += float(row["contribution"])
    return sums[0], sum(sums[1:]) / (CLIENTS - 1)


def accuracy(run_dir: Path) -> float:
    """Return the last model's test accuracy."""
    return float(read_rows(run_dir / "rounds.csv")[-1]["test_accuracy"])


if __name__ == "__main__":
    typer.run(main)
