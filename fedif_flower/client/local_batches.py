"""The batches of an epoch of local training: shuffled tensors, or batches as the data give them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import DataError
from fedif_flower.local_methods import LocalTerm
from fedif_flower.tasks.batches import read_batches, tensor_pair
from fedif_flower.tasks.modules import image_format, sparing_single_values, to_memory_format
from fedif_flower.tasks.rows import num_rows
from fedif_flower.tasks.structures import describe, to_device
from fedif_flower.tasks.task import LossFunction, Task
from fedif_flower.valuation.class_mean import BatchSize, class_mean
from fedif_flower.valuation.objective import Objective, objective_of

NO_EXAMPLES = "local training needs at least one example; this client has none"


class PreparedBatches:
    """Batches of tensors that lie in memory, in a new order in each epoch.

    Each epoch copies the examples in their new order into the same memory; batches are views of it.
    Images lie in the memory format in which the model is fastest. A batch norm that gets a single
    value per channel (in a last batch of one example, with 1x1 maps) has no batch statistics: it
    uses its running statistics, and leaves them as they are.

    Parameters
    ----------
    model : torch.nn.Module
        The model to train. The memory format depends on it.
    inputs : Tensor
        ``[n, ...]``, n >= 1.
    labels : Tensor
        ``[n, ...]``, on the same device.
    batch_size : int
        Examples per batch, >= 1; the last batch may be smaller.
    loss_fn : callable
        ``loss_fn(model(inputs), labels)`` -> scalar, the mean over the batch.

    Attributes
    ----------
    data : tuple of two Tensor
        Inputs and labels in their own order.

    Raises
    ------
    DataError
        If there are no examples.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        batch_size: int,
        loss_fn: LossFunction,
    ) -> None:
        count = len(labels)
        if count == 0:
            raise DataError(NO_EXAMPLES)
        size = min(batch_size, count)
        # They may come from another model's pass, which training has nothing to do with.
        inputs = inputs.detach()
        labels = labels.detach()
        self._inputs = to_memory_format(inputs, image_format(model, inputs))
        self._labels = labels
        self._loss_fn = loss_fn
        mean = class_mean(loss_fn)
        # [n], on the CPU: how much each example counts in the loss; None: all count the same.
        self._weights: Tensor | None = None
        if mean is not None:
            weights = mean.example_weights(labels)
            if bool((weights != weights[0]).any()):
                self._weights = weights
        self.data = (inputs, labels)
        self._shuffled = torch.empty_like(self._inputs)
        self._shuffled_labels = torch.empty_like(labels)
        # Views of the two tensors above, which each epoch fills anew.
        self._size = size
        self._batches: list[tuple[Tensor, Tensor]] = []
        for start in range(0, count, size):
            part = slice(start, start + size)
            self._batches.append((self._shuffled[part], self._shuffled_labels[part]))

    def epoch(self, generator: torch.Generator) -> list[tuple[Tensor, Tensor, BatchSize]]:
        """Return all examples in a new order, in batches with their sizes."""
        drawn = torch.randperm(len(self._labels), generator=generator)
        order = drawn.to(self._labels.device)
        torch.index_select(_rows(self._inputs), 0, order, out=_rows(self._shuffled))
        torch.index_select(self._labels, 0, order, out=self._shuffled_labels)
        sizes = self._sizes(drawn)
        return [(*batch, size) for batch, size in zip(self._batches, sizes, strict=True)]

    def _sizes(self, order: Tensor) -> list[BatchSize]:
        """Return the size of each batch when examples are in an order ``[n]``."""
        if self._weights is None:
            counts = [len(labels) for _, labels in self._batches]
            return [BatchSize(count, count) for count in counts]
        parts = torch.split(self._weights[order], self._size)
        return [BatchSize(int((part > 0).sum()), float(part.sum())) for part in parts]

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, BatchSize]:
        """Return the mean loss over a batch, and the batch's size."""
        inputs, labels, size = batch
        with _sparing_if_single(model, len(labels)):
            return self._loss_fn(model(inputs), labels), size


def _rows(examples: Tensor) -> Tensor:
    """Return dense examples as a view ``[n, values]``, whatever their memory format is."""
    length = examples[0].numel()
    return examples.as_strided((len(examples), length), (length, 1))


def _sparing_if_single(model: nn.Module, count: int | None) -> AbstractContextManager[None]:
    """Return the context for a batch of ``count`` examples: it spares batch norms if that is 1."""
    return sparing_single_values(model) if count == 1 else nullcontext()


class BatchesAsTheyCome:
    """Batches of data of any structure.

    Tensors and a Dataset are shuffled anew in each epoch, and cut into batches. A DataLoader, a
    list of batches or anything else that yields batches is taken as it comes. A batch is left out
    if none of its targets counts in the loss. Batch norms treat a batch of one example as in
    :class:`PreparedBatches`.

    Parameters
    ----------
    data : Tensor, dict or tuple of Tensor, Dataset, DataLoader or iterable of batches
        The data, which can be gone through once in each epoch.
    objective : Objective
        The loss.
    batch_size : int
        Examples per batch, >= 1, for data that are cut into batches.
    device : torch.device
        The device that batches are moved to.
    """

    def __init__(
        self, data: Any, objective: Objective, batch_size: int, device: torch.device
    ) -> None:
        self.data = data
        self._objective = objective
        self._batch_size = batch_size
        self._device = device

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Any, BatchSize | None]]:
        """Yield batches on the device, each with its size if that is known without the loss.

        Raises
        ------
        ValuationError
            If the data cannot be read as batches, or a batch is not of the objective's form.
        DataError
            If the data are an iterator that is used up or empty.
        """
        is_over = isinstance(self.data, Iterator)  # Until a batch comes of it.
        for batch in read_batches(self.data, None, self._batch_size, generator):
            is_over = False
            # The batch is read before it is moved: reading it on a GPU would mean waiting for it.
            self._objective.check(batch)
            size = self._objective.counted_size(batch)
            if size is None or size.weight:  # A mean over weight 0 would be 0 / 0.
                yield to_device(batch, self._device), size
        if is_over:
            raise DataError(
                "client_data is an iterator that is used up, or had no batch: return a list or a "
                "DataLoader, which every epoch can go through"
            )

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, BatchSize]:
        """Return the mean loss over a batch, and the batch's size.

        Raises
        ------
        ValuationError
            If the data give single examples where batches are expected.
        DataError
            If the loss is no scalar.
        """
        content, _ = batch
        self._objective.check_with(model, content)
        with _sparing_if_single(model, num_rows(content)):
            loss, size = self._objective.loss_and_size(model, *batch)
        if loss.dim():
            raise DataError(
                f"{self._objective.call} gives {describe(loss)} in training; expected a scalar "
                "tensor, the mean loss over the batch"
            )
        return loss, size


def batches_of(
    task: Task, model: nn.Module, data: Any, batch_size: int, term: LocalTerm
) -> PreparedBatches | BatchesAsTheyCome:
    """Return the batches of a task's data, with the term's loss if it has one, else the task's."""
    pair = tensor_pair(data)
    if pair is not None and task.batch_loss is None:
        inputs, targets = _counted(task.pair_loss, *pair)
        loss_fn = term.loss_fn or task.pair_loss
        return PreparedBatches(model, inputs, targets, batch_size, loss_fn)
    objective = objective_of(term.loss_fn or task.loss, task.batch_loss)
    device = next(model.parameters()).device
    return BatchesAsTheyCome(data, objective, batch_size, device)


def _counted(loss_fn: LossFunction, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the examples whose targets count in the loss; a batch of others alone has no mean.

    Raises
    ------
    DataError
        If there are examples, and none of them counts.
    """
    mean = class_mean(loss_fn)
    if mean is None:
        return inputs, targets
    counted = mean.counts(targets)
    if bool(counted.all()):
        return inputs, targets  # Indexing would copy them.
    if not bool(counted.any()):
        raise DataError(f"{NO_EXAMPLES} that counts")
    return inputs[counted], targets[counted]
