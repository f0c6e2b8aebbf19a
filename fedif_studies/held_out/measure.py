"""A run with a held-out set that has faults: its accuracy, scores and shares of money."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedif_flower.client.app import task_app
from fedif_flower.devices import torch_threads
from fedif_flower.run.config import RunConfig
from fedif_flower.run.correction import NOISE
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import HELD_OUT_KEY
from fedif_flower.run.held_out import WITNESS, last_contradicted
from fedif_flower.run.results import Run, load
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Scalar
from fedif_flower.tasks.images import settled
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import ClientSite, Site, Task
from fedif_flower.valuation import Validation
from fedif_flower.valuation.examination import vet
from fedif_flower.valuation.label_noise import ForwardCorrected
from fedif_studies.held_out.cells import (
    ATTACKS,
    ATTRIBUTION,
    BY_CLASS,
    CORRECTED,
    LEFT_OUT,
    STRATEGIES,
    TRUE_CHANCES,
)
from fedif_studies.held_out.labels import (
    CONFUSED,
    kept_of_class,
    mistaken_for,
    true_transitions,
    with_wrong_labels,
)
from fedif_studies.rows import Row

MOST_TEST = 2000  # At most so many examples are tested on.
MOST_TRAINING = 1200  # A member has at most so many examples, so that a run takes seconds.
OF_DATA: Mapping[str, Mapping[str, Scalar]] = {
    "digits": {"num-server-rounds": 25},
    "fashion-mnist": {
        "num-server-rounds": 20,
        "model": "mlp",
        "learning-rate": 0.05,
        "batch-size": 32,
    },
    # CIFAR-10 is read as a folder of images. The examination of its held-out set has more time than
    # by default, since it trains convolutional networks.
    "cifar10": {
        "dataset": "image-folder",
        "num-server-rounds": 30,
        "validation.seconds": 900.0,
    },
}
_NOISE: Mapping[str, Scalar] = {CORRECTED: "auto", BY_CLASS: "by-class"}
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


def measure(data_dir: str, cell: Row) -> list[Row]:
    """Run a cell; return its row of figures."""
    noise = _NOISE.get(cell["treatment"], "off")
    settings: dict[str, Scalar] = {
        **USUAL,
        "dataset": cell["data"],
        **OF_DATA[cell["data"]],
        **STRATEGIES[cell["strategy"]],
        **ATTACKS[cell["attack"]],
        "strategy": cell["strategy"],
        "seed": int(cell["seed"]),
        "validation.noise": noise,
        "validation.vet": noise != "off",
    }
    if data_dir and cell["data"] != "digits":
        settings["data-dir"] = data_dir
    with TemporaryDirectory() as folder, torch_threads(1):
        config = settled(RunConfig.from_run_config({**settings, "output-dir": folder}))
        members_task = with_few_examples(build_task(config))
        grid = LocalGrid(task_app(members_task), config.num_clients)
        task = task_of(members_task, config.seed, cell)
        run = load(run_federation(grid, config, task=task))
        return [figures_of(run, cell)]


def with_few_examples(task: Task) -> Task:
    """Return a task in which each member has only its first ``MOST_TRAINING`` examples."""

    def client_data(site: ClientSite) -> tuple[Tensor, Tensor]:
        data: Any = task.client_data(site)
        images, labels = data
        return images[:MOST_TRAINING], labels[:MOST_TRAINING]

    return replace(task, client_data=client_data)


def figures_of(run: Run, cell: Row) -> Row:
    """Return a run's figures: of its model, its scores, its held-out labels and its money."""
    examined = run.folder.provenance.read()[HELD_OUT_KEY]
    row: Row = {
        "accuracy": run.summary["test_accuracy"],
        "auc": run.summary["detection_auc"],
        "noise": examined.get("noise"),
        "low": examined.get("low"),
        "high": examined.get("high"),
        "by_class": examined.get("by_class"),
        "corrected": examined[NOISE],
        "contradicted": last_contradicted(run.lines("rounds"), WITNESS),
        "seconds": examined.get("seconds"),
    }
    if STRATEGIES[cell["strategy"]] is not ATTRIBUTION:
        return row
    members = sorted(run.members, key=lambda member: member.partition_id)
    positive = [max(member.contribution or 0.0, 0.0) for member in members]
    is_liar = [member.malicious for member in members]
    return {**row, **money_of(positive, is_liar)}


def money_of(positive: Sequence[float], is_liar: Sequence[bool]) -> Row:
    """Return members' shares of the money, and the malicious ones'; empty if nobody is paid.

    Parameters
    ----------
    positive : sequence of float
        Each member's contribution, or 0 if it is negative.
    is_liar : sequence of bool
        Whether each member is malicious.
    """
    total = sum(positive)
    if not total > 0:
        return {"liars_share": "", "shares": ""}
    liars = sum(itertools.compress(positive, is_liar))
    shares = " ".join(f"{value / total:.5g}" for value in positive)
    return {"liars_share": f"{liars / total:.5g}", "shares": shares}


def task_of(task: Task, config_seed: int, cell: Row) -> Task:
    """Return the server's task: with a cell's number of held-out examples, and their faults."""
    site = Site(config_seed)
    # Both splits are joined and drawn anew, since the study varies the held-out set's size.
    splits: Sequence[Any] = (task.validation_data(site), task.test_data(site))
    images, labels = (torch.cat(both) for both in zip(*splits, strict=True))
    seed = int(cell["seed"])
    order = torch.randperm(len(labels), generator=torch_generator("held-out-study", seed))
    count = int(cell["examples"])
    held_out = order[:count]
    held_out = held_out[kept_of_class(labels[held_out], cell["classes"])]
    test = order[count : count + MOST_TEST]
    share = float(cell["wrong"])
    num_classes = task.num_classes or 0
    others: Tensor | None = None
    if cell["kind"] == CONFUSED:
        others = mistaken_for(cell["data"])
    noisy_labels = with_wrong_labels(labels[held_out], share, num_classes, seed, others)
    faults = " ".join(str(value) for value in cell.values())
    faulty = replace(
        task,
        validation_data=lambda _: (images[held_out], noisy_labels),
        test_data=lambda _: (images[test], labels[test]),
        fingerprint=f"{task.fingerprint} {faults}",
    )
    if cell["treatment"] == LEFT_OUT:
        return without_suspects(faulty, config_seed)
    if cell["treatment"] == TRUE_CHANCES:
        loss = task.loss or functional.cross_entropy
        chances = true_transitions(share, num_classes, others)
        return replace(faulty, loss=ForwardCorrected(loss, chances))
    return faulty


def without_suspects(task: Task, seed: int) -> Task:
    """Return a task whose held-out set lacks the examples that look wrong."""
    images, labels = task.validation_data(Site(seed))  # type: ignore[misc]
    judge = Validation(
        task.build_model(seed), task.transformed((images, labels)), loss_fn=task.loss, device="cpu"
    )
    examined = vet(judge, build=task.build_model, seed=seed)
    stays = torch.ones(len(labels), dtype=torch.bool)
    for suspect in examined.suspects:
        stays[suspect.index] = False
    return replace(task, validation_data=lambda _: (images[stays], labels[stays]))
