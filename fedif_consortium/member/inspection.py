"""A member judges its own examples by the gradients that the server published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedif_consortium.evidence.kept_gradients import KeptGradient
from fedif_consortium.member.example_influence import (
    example_influence,
    neighbour_agreement,
)
from fedif_flower.client.trust import client_site, require_trusted
from fedif_flower.devices import select_device
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.foreign import parse_json, refused_as
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.models import load_arrays
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.tasks.batches import read_batches
from fedif_flower.tasks.config import IMAGES, OWN, TaskConfig
from fedif_flower.tasks.data.sources.image_folder import list_images
from fedif_flower.tasks.modules import last_layer_inputs, own_randomness
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.rows import class_labels
from fedif_flower.tasks.structures import to_device
from fedif_flower.tasks.task import Data, Task
from fedif_flower.valuation.objective import PairObjective, objective_of

NEIGHBOURS = 10  # How many neighbours of an example are compared with it.
BATCH = 100  # The number of examples in memory at a time, with their layers' outputs.


class InspectedExample(NamedTuple):
    """What the published gradients say of one example.

    Attributes
    ----------
    rank : int
        The example's place by its loss, the largest first: rank 1 is the likeliest to be
        mislabelled.
    example : int
        Its index in the data, from 0.
    file, label : str
        Its file and its class; empty if there are none.
    influence : float
        The inner product of the example's gradient with the published gradient, divided by the
        latter's length, as the mean over the rounds. If it is below 0, learning the example raised
        the server's loss.
    loss : float
        The example's loss, as the mean over the rounds.
    agreement : float, optional
        The share of its nearest neighbours that have its label. ``None`` if there are no classes,
        or the model's features of two batches cannot be compared.
    """

    rank: int
    example: int
    file: str
    label: str
    influence: float
    loss: float
    agreement: float | None


def inspect_examples(
    task: Task,
    data: Data,
    rounds: Iterable[KeptGradient],
    files: Sequence[Path] = (),
    device: str = "auto",
) -> list[InspectedExample]:
    """Return what the published gradients say of each example, the largest loss first.

    Parameters
    ----------
    task : Task
        The federation's task.
    data : Data
        The member's data, as the task loads them.
    rounds : iterable of KeptGradient
        At least one kept round. They are read one after the other.
    files : sequence of Path
        The file of each example; empty if examples have no files of their own.
    device : str
        The device that computes, or ``"auto"``.

    Raises
    ------
    ConfigError, ValuationError, DataError
        If model, gradient, data and files do not fit each other.
    """
    compute_device = select_device(device)
    model = task.build_model(seed=0).to(compute_device).eval()
    objective = objective_of(task.loss, task.batch_loss)
    if isinstance(data, DataLoader) and data.batch_sampler is not None:
        # A new loader, since the member's may shuffle: each round needs the examples in one order.
        data = DataLoader(data.dataset, BATCH, collate_fn=data.collate_fn)
    transformed = task.transformed(data)

    def read() -> Iterator[Any]:
        for batch in read_batches(transformed, None, BATCH):
            yield to_device(batch, compute_device)

    influences = []  # [n] for each round.
    losses = []  # [n] for each round.
    for kept_round in rounds:
        _load_model(model, kept_round)
        gradient = _gradient_of(model, kept_round).to(compute_device)
        with own_randomness(compute_device):  # A model may draw at random in eval mode too.
            of_examples = example_influence(model, objective, read(), gradient)
        # The bound keeps a gradient of zeros from a division by 0.
        norm = gradient.double().norm().clamp_min(1e-300).cpu()
        influences.append(of_examples.products / norm)
        losses.append(of_examples.losses)
    loss = torch.stack(losses).mean(dim=0)  # [n]
    if files and len(files) != len(loss):
        raise DataError(f"there are {len(loss)} examples in {len(files)} files: inspect them again")

    labels = _read_labels(read())
    agreement = None
    if labels is not None and isinstance(objective, PairObjective) and len(labels) > 1:
        with own_randomness(compute_device):
            features = last_layer_inputs(model, read())
        if features is not None:
            agreement = neighbour_agreement(features, labels, NEIGHBOURS)
    influence = torch.stack(influences).mean(dim=0)  # [n]
    return _lines(task, influence, loss, files, labels, agreement)


def _lines(
    task: Task,
    influence: Tensor,
    loss: Tensor,
    files: Sequence[Path],
    labels: Tensor | None,
    agreement: Tensor | None,
) -> list[InspectedExample]:
    """Return a line for each of the n examples, the largest loss first."""
    file_names = [""] * len(loss)
    if files:
        file_names = list(map(str, files))
    class_names = [""] * len(loss)
    if labels is not None:
        class_names = [_class_name(task, int(label)) for label in labels]
    agreements: list[float | None] = [None] * len(loss)
    if agreement is not None:
        agreements = agreement.tolist()
    examples = (-loss).argsort(stable=True).tolist()
    return [
        InspectedExample(
            rank=rank,
            example=example,
            file=file_names[example],
            label=class_names[example],
            influence=float(influence[example]),
            loss=float(loss[example]),
            agreement=agreements[example],
        )
        for rank, example in enumerate(examples, start=1)
    ]


def _class_name(task: Task, label: int) -> str:
    """Return a class's name by the task's facts, or its number if it has no name."""
    names: Sequence[str] = task.facts.get("classes", ())
    if 0 <= label < len(names):
        return str(names[label])
    return str(label)


def _load_model(model: nn.Module, kept_round: KeptGradient) -> None:
    """Load a round's model; raise ConfigError if it is not the task's model."""
    reason = (
        f"the kept model of round {kept_round.server_round} is not the model of this task: was it "
        "of another run? Keep each in a folder of its own"
    )
    with refused_as(ConfigError, reason):
        arrays = {name: pack_array(array) for name, array in kept_round.arrays.items()}
        load_arrays(model, arrays)


def _gradient_of(model: nn.Module, kept_round: KeptGradient) -> Tensor:
    """Return a round's gradient ``[d]``; raise ConfigError if its length is not the model's."""
    expected = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    with refused_as(ConfigError, f"{kept_round.file} holds no gradient of this model"):
        gradient = torch.from_numpy(kept_round.gradient)
        if gradient.shape != (expected,):
            raise ValueError(f"its shape is {list(gradient.shape)} in place of [{expected}]")
    return gradient


def _read_labels(batches: Iterable[Any]) -> Tensor | None:
    """Return the examples' class labels ``[n]``; ``None`` if they have none."""
    labels = []
    for batch in batches:
        batch_labels = class_labels(batch)
        if batch_labels is not None:
            labels.append(batch_labels)
    if not labels:
        return None
    return torch.cat(labels).cpu()


def member_data(gradient: KeptGradient, node: NodeConfig, task_name: str) -> tuple[Task, Data]:
    """Return the task of a kept round, and this node's data for it.

    Parameters
    ----------
    gradient : KeptGradient
        A kept round, with what the server said of its run.
    node : NodeConfig
        The node's config: where its data lie, and what it may import.
    task_name : str
        The task as ``module:object``; empty: the task that the server named. It is needed if the
        run was about an app's own task.

    Raises
    ------
    ConfigError, DataError
        If there is no such task, the node's config does not let it be imported, or the data cannot
        be read.
    """
    with refused_as(ConfigError, f"what {gradient.file} says of the run cannot be read"):
        config = ClientConfig.from_json(gradient.config)
        facts = parse_json(gradient.facts)
        if not isinstance(facts, dict):
            raise ValueError("the facts are no object")
    if task_name:
        config = config.replace(task=task_name)
    elif config.task.startswith(OWN):
        raise ConfigError(
            f"the run was about the app's own task {gradient.task!r}; say where it is here: --task "
            "MODULE:OBJECT"
        )
    else:
        require_trusted(config, node)
    with refused_as(ConfigError, f"the task that {gradient.file} names cannot be made"):
        task = build_task(config.extract(TaskConfig), facts)
    return task, task.load("client_data", client_site(config, node))


def files_of(gradient: KeptGradient, node: NodeConfig) -> list[Path]:
    """Return the file of each example if the node's data are a tree of images, or else ``[]``."""
    config = ClientConfig.from_json(gradient.config)
    if config.task != IMAGES or node.num_partitions is not None or not node.data_dir:
        return []
    listing = list_images(Path(node.data_dir).expanduser().resolve() / "train")
    return [Path(path) for path in listing.paths]
