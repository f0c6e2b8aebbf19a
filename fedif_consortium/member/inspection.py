"""A member's own examples, judged by what the server published: which of them do harm."""

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

NEIGHBOURS = 10
BATCH = 100  # Examples in memory at a time, with their layers' outputs.


class Line(NamedTuple):
    """What the published gradients say of an example; the one of the largest loss has rank 1.

    Attributes
    ----------
    rank, example : int
        Its places among the likeliest mislabelled ones, and in the data.
    file, label : str
        Where it lies, and its class; empty where there are none.
    influence : float
        Mean over the rounds of the product of the example's gradient with the published one, over
        the latter's length; below 0: learning the example raised the server's loss.
    loss : float
        The example's own, mean over the rounds.
    agreement : float, optional
        Share of its neighbours with its label; ``None`` where there are no classes, or the model's
        answers to one batch and another cannot be compared.
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
) -> list[Line]:
    """Return what the published gradients say of each example, the largest loss first.

    Parameters
    ----------
    task : Task
        What the federation is about.
    data : Data
        The member's, as the task gives them.
    rounds : iterable of KeptGradient
        At least one; read one after the other.
    files : sequence of Path
        Each example's, if they lie in files of their own.
    device : str
        Where it is computed.

    Raises
    ------
    ConfigError, ValuationError, DataError
        If model, gradient, data and files do not fit each other.
    """
    compute_device = select_device(device)
    model = task.build_model(seed=0).to(compute_device).eval()
    objective = objective_of(task.loss, task.batch_loss)
    if isinstance(data, DataLoader) and data.batch_sampler is not None:
        # In the same order each time: a loader may shuffle them.
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
        with own_randomness(0, compute_device):  # A model may draw at random in eval mode too.
            of_examples = example_influence(model, objective, read(), gradient)
        norm = gradient.double().norm().clamp_min(1e-300).cpu()
        influences.append(of_examples.products / norm)
        losses.append(of_examples.losses)
    loss = torch.stack(losses).mean(dim=0)  # [n]
    if files and len(files) != len(loss):
        raise DataError(f"there are {len(loss)} examples in {len(files)} files: inspect them again")

    labels = _read_labels(read())
    agreement = None
    if labels is not None and isinstance(objective, PairObjective) and len(labels) > 1:
        with own_randomness(0, compute_device):
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
) -> list[Line]:
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
        Line(
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
    """Return what a task calls a class; one without a name is called by its number."""
    names: Sequence[str] = task.facts.get("classes", ())
    if 0 <= label < len(names):
        return str(names[label])
    return str(label)


def _load_model(model: nn.Module, kept_round: KeptGradient) -> None:
    """Load a round's model, or raise ConfigError: it is another one than the task's."""
    reason = (
        f"the kept model of round {kept_round.server_round} is not the model of this task: was it "
        "of another run? Keep each in a folder of its own"
    )
    with refused_as(ConfigError, reason):
        arrays = {name: pack_array(array) for name, array in kept_round.arrays.items()}
        load_arrays(model, arrays)


def _gradient_of(model: nn.Module, kept_round: KeptGradient) -> Tensor:
    """Return a round's gradient ``[d]``, or raise ConfigError: it is another model's."""
    expected = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    with refused_as(ConfigError, f"{kept_round.file} holds no gradient of this model"):
        gradient = torch.from_numpy(kept_round.gradient)
        if gradient.shape != (expected,):
            raise ValueError(f"its shape is {list(gradient.shape)} in place of [{expected}]")
    return gradient


def _read_labels(batches: Iterable[Any]) -> Tensor | None:
    """Return the examples' class labels ``[n]``; ``None``: they have none."""
    labels = []
    for batch in batches:
        batch_labels = class_labels(batch)
        if batch_labels is not None:
            labels.append(batch_labels)
    if not labels:
        return None
    return torch.cat(labels).cpu()


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
    with refused_as(ConfigError, f"what {kept.file} says of the run cannot be read"):
        config = ClientConfig.from_json(kept.config)
        facts = parse_json(kept.facts)
        if not isinstance(facts, dict):
            raise ValueError("the facts are no object")
    if task_name:
        config = config.replace(task=task_name)
    elif config.task.startswith(OWN):
        raise ConfigError(
            f"the run was about the app's own task {kept.task!r}; say where it is here: --task "
            "MODULE:OBJECT"
        )
    else:
        require_trusted(config, node)
    with refused_as(ConfigError, f"the task that {kept.file} names cannot be made"):
        task = build_task(config.part(TaskConfig), facts)
    return task, task.load("client_data", client_site(config, node))


def files_of(kept: KeptGradient, node: NodeConfig) -> list[Path]:
    """Return the file of each example, where the node has a tree of images; else none."""
    config = ClientConfig.from_json(kept.config)
    if config.task != IMAGES or node.num_partitions is not None or not node.data_dir:
        return []
    listing = list_images(Path(node.data_dir).expanduser().resolve() / "train")
    return [Path(path) for path in listing.paths]
