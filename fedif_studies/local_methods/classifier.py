"""Checks of a task for methods against wrong labels: a classifier, trained by cross-entropy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedif_flower.tasks.batches import read_batches
from fedif_flower.tasks.rows import class_labels
from fedif_flower.tasks.structures import to_device
from fedif_flower.tasks.task import Data, LossFunction, Task

_BATCH = 256


def classifier_misfit(task: Task, data: Data) -> str:
    """Return what a task lacks to be a classifier, as the end of a sentence; empty if nothing.

    Parameters
    ----------
    task : Task
        The task. It needs ``num_classes``, and cross-entropy as its loss.
    data : Data
        A client's data. The first batch has to end in class labels ``[n]``.
    """
    if not task.num_classes:
        return "class labels (num_classes)"
    if task.batch_loss is not None or not _is_cross_entropy(task.loss):
        return "cross-entropy without weights or smoothing for its loss"
    first = next(iter(read_batches(data, None, 1)), None)
    if class_labels(first) is None:
        return "batches that end in class labels [n]"
    return ""


def labelled_batches(data: Any, device: torch.device) -> Iterator[Any]:
    """Yield a client's batches, in their order, on a device. A batch ends in its labels."""
    for batch in read_batches(data, None, _BATCH):
        yield to_device(batch, device)


def _is_cross_entropy(loss: LossFunction | None) -> bool:
    if loss is None or loss is functional.cross_entropy:
        return True
    if type(loss) is not nn.CrossEntropyLoss:
        return False
    return loss.weight is None and not loss.label_smoothing and loss.reduction == "mean"
