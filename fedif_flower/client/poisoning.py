"""What a behaviour makes of a client's data, in whatever form its task has them."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedif_flower.attacks import Behaviour
from fedif_flower.errors import DataError
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.batches import describe, tensor_pair
from fedif_flower.tasks.task import Task


def poisoned_data(
    task: Task,
    model: nn.Module,
    data: Any,
    acting: Behaviour,
    ids: tuple[int, int],
    server_round: int,
) -> Any:
    """Return a client's data as its model takes them; a pair of tensors on the model's device.

    Parameters
    ----------
    task : Task
        Whose ``transform`` the inputs go through.
    model : nn.Module
        The model received: adversarial samples are made against it, and inputs go to its device.
    data : Data
        What the task gave this client: tensors, or batches of any structure.
    acting : Behaviour
        Changes labels, inputs or whole examples, or nothing.
    ids : tuple of int
        The run's seed and the partition, on which what is drawn depends.
    server_round : int
        The same, of inputs; other data are changed once.

    Raises
    ------
    DataError
        If the behaviour or the task's ``transform`` needs tensors, and the data are none.
    """
    device = next(model.parameters()).device
    data = acting.poison_data(data, torch_generator("poison-data", *ids))
    pair = tensor_pair(data)
    if pair is None:
        if acting.needs_tensors:
            raise DataError(
                f"attack {type(acting).__name__} changes tensors of inputs and labels; the client "
                f"data of task {task.name!r} are {describe(data)}"
            )
        return task.transformed(data)
    inputs, targets = pair
    classes = task.num_classes or 0
    targets = acting.poison_labels(targets, classes, torch_generator("poison-labels", *ids)).to(
        device
    )
    scaled, transform = task.in_unit_range(inputs.to(device))
    scaled, targets = acting.poison_examples(
        scaled, targets, classes, torch_generator("poison-examples", *ids)
    )
    generator = torch_generator("poison-inputs", *ids, server_round)
    return transform(acting.poison_inputs(model, scaled, targets, transform, generator)), targets
