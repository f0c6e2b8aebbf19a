"""A member's own examples, judged by what the server published: which of them do harm."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedif_consortium.evidence.kept_gradients import KeptGradient
from fedif_flower.client.trust import client_site, require_trusted
from fedif_flower.devices import select_device
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.tasks.batches import class_labels, read_batches, to_device
from fedif_flower.tasks.config import IMAGES, OWN, TaskConfig
from fedif_flower.tasks.data.sources.image_folder import list_images
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import Data, Task
from fedif_flower.valuation.example_influence import (
    example_influence,
    neighbour_agreement,
    representations,
)
from fedif_flower.valuation.objective import PairObjective, objective_of

NEIGHBOURS = 10
BATCH = 100  # Examples in memory at a time, with their layers' outputs.


@dataclass(frozen=True)
class Findings:
    """What was found of each of n examples, in the order of the data.

    Attributes
    ----------
    rounds : tuple of int
        Whose models and gradients were used.
    influence : Tensor
        ``[n]``: mean over the rounds of the product of the example's gradient with the published
        one, over the latter's length; below 0: learning the example raised the server's loss.
    losses : Tensor
        ``[n]``: the example's own, mean over the rounds.
    agreement : Tensor, optional
        ``[n]``: share of its neighbours with its label; ``None`` where there are no classes.
    labels : Tensor, optional
        ``[n]``: its class.
    """

    rounds: tuple[int, ...]
    influence: Tensor
    losses: Tensor
    agreement: Tensor | None
    labels: Tensor | None

    @property
    def order(self) -> Tensor:
        """The examples ``[n]``, the likeliest mislabelled first: those of largest own loss."""
        return (-self.losses).argsort(stable=True)


def inspect_examples(
    task: Task, data: Data, rounds: Iterable[KeptGradient], device: str = "auto"
) -> Findings:
    """Return what the published gradients say of each example.

    Parameters
    ----------
    task : Task
        What the federation is about.
    data : Data
        The member's, as the task gives them.
    rounds : iterable of KeptGradient
        At least one; read one after the other.
    device : str
        Where it is computed.

    Raises
    ------
    ConfigError, ValuationError, DataError
        If model, gradient and data do not fit each other.
    """
    place = select_device(device)
    model = task.build_model(seed=0).to(place).eval()
    objective = objective_of(task.loss, task.batch_loss)
    if isinstance(data, DataLoader) and data.batch_size is not None:
        # In the same order each time: a loader may shuffle them.
        data = DataLoader(data.dataset, BATCH, collate_fn=data.collate_fn)
    transformed = task.transformed(data)

    def batches() -> Iterator[Any]:
        return (to_device(batch, place) for batch in read_batches(transformed, None, BATCH))

    influences, losses, seen = [], [], []
    for kept in rounds:
        load_kept(model, kept)
        gradient = torch.from_numpy(kept.gradient).to(place)
        found = example_influence(model, objective, batches(), gradient)
        influences.append(found.products / gradient.double().norm().clamp_min(1e-300).cpu())
        losses.append(found.losses)
        seen.append(kept.server_round)
    known = [class_labels(batch) for batch in batches()]
    labels, agreement = None, None
    if all(label is not None for label in known):
        labels = torch.cat([label.cpu() for label in known if label is not None])
        if isinstance(objective, PairObjective) and len(labels) > 1:
            features = representations(model, batches())
            agreement = neighbour_agreement(features, labels, NEIGHBOURS)
    influence, loss = torch.stack(influences).mean(dim=0), torch.stack(losses).mean(dim=0)
    return Findings(tuple(seen), influence, loss, agreement, labels)


@torch.no_grad()
def load_kept(model: nn.Module, kept: KeptGradient) -> None:
    """Load a kept model.

    Raises
    ------
    ConfigError
        If it is another model than the task's.
    """
    state = model.state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    if shapes != {name: array.shape for name, array in kept.arrays.items()}:
        raise ConfigError(
            f"the kept model of round {kept.server_round} is not the model of this task: was it of "
            "another run? Keep each run's gradients in a folder of its own"
        )
    for name, value in state.items():
        value.copy_(torch.from_numpy(kept.arrays[name]))


def member_data(kept: KeptGradient, node: NodeConfig, task_name: str) -> tuple[Task, Data]:
    """Return the task of a kept round, and this node's data of it.

    Parameters
    ----------
    kept : KeptGradient
        What the server said of the run.
    node : NodeConfig
        This host's: where its data lie, what it may import.
    task_name : str
        ``module:object`` in place of an app's own task; empty: as the server said.

    Raises
    ------
    ConfigError, DataError
        If there is no such task, or the data cannot be read.
    """
    config = ClientConfig.from_json(kept.config)
    if task_name:
        config = config.replace(task=task_name)
    elif config.task.startswith(OWN):
        raise ConfigError(
            f"the run was about the app's own task {kept.task!r}; say where it is here: --task "
            "MODULE:OBJECT"
        )
    else:
        require_trusted(config, node)
    task = build_task(config.part(TaskConfig), json.loads(kept.facts))
    return task, task.load("client_data", client_site(config, node))


def files_of(kept: KeptGradient, node: NodeConfig, count: int) -> list[Path] | None:
    """Return the file of each example, where the node has a tree of images; else ``None``.

    Raises
    ------
    DataError
        If files came or went while they were read.
    """
    config = ClientConfig.from_json(kept.config)
    if config.task != IMAGES or node.num_partitions is not None or not node.data_dir:
        return None
    listing = list_images(Path(node.data_dir).expanduser().resolve() / "train")
    if len(listing.paths) != count:
        raise DataError(f"{node.data_dir} changed while it was read: inspect it again")
    return [Path(path) for path in listing.paths]


class Line(NamedTuple):
    """An example; that of the largest loss has rank 1."""

    rank: int
    example: int
    file: str
    label: str
    influence: float
    loss: float
    agreement: float | None


def table_lines(
    findings: Findings, classes: Sequence[str] = (), files: Sequence[Path] | None = None
) -> list[Line]:
    """Return every example, the likeliest mislabelled first.

    Parameters
    ----------
    findings : Findings
        What was found.
    classes : sequence of str
        The names of the classes, if they have any.
    files : sequence of Path, optional
        Each example's.
    """
    names, lines = dict(enumerate(classes)), []
    for rank, i in enumerate(findings.order.tolist(), start=1):
        number = None if findings.labels is None else int(findings.labels[i])
        label = "" if number is None else names.get(number, str(number))
        agreement = None if findings.agreement is None else float(findings.agreement[i])
        figures = float(findings.influence[i]), float(findings.losses[i]), agreement
        lines.append(Line(rank, i, str(files[i]) if files else "", label, *figures))
    return lines
