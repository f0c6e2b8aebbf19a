"""Where the batches of local training come from: tensors in memory, or data of any structure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import DataError
from fedif_flower.tasks.batches import describe, read_batches, to_device
from fedif_flower.tasks.modules import (
    image_format,
    sparing_single_values,
    to_memory_format,
)
from fedif_flower.tasks.task import LossFunction
from fedif_flower.valuation.objective import BatchSize, Objective

NO_EXAMPLES = "local training needs at least one example; this client has none"


class PreparedBatches:
    """Tensors in memory, in a new order per epoch: one gather into the same memory, then views.

    Images lie in the format in which the model is fastest. A batch norm that would see a single
    value per channel (a last batch of one example and 1x1 maps) has no batch statistics: there it
    uses its running ones and leaves them alone.

    Parameters
    ----------
    model : torch.nn.Module
        Decides the format.
    inputs : Tensor
        ``[n, ...]``, n >= 1.
    labels : Tensor
        ``[n, ...]``, on the same device.
    batch_size : int
        >= 1; the last batch may be smaller.
    loss_fn : callable
        ``loss_fn(model(inputs), labels)`` -> scalar, the mean over the batch.

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
        self._inputs = to_memory_format(inputs, image_format(model, inputs))
        self._labels, self._loss_fn = labels, loss_fn
        self._shuffled, self._shuffled_labels = (
            torch.empty_like(self._inputs),
            torch.empty_like(labels),
        )
        self._batches = [
            (self._shuffled[start : start + size], self._shuffled_labels[start : start + size])
            for start in range(0, count, size)
        ]

    def epoch(self, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        """Return all examples in a new order."""
        order = torch.randperm(len(self._labels), generator=generator).to(self._labels.device)
        torch.index_select(_rows(self._inputs), 0, order, out=_rows(self._shuffled))
        torch.index_select(self._labels, 0, order, out=self._shuffled_labels)
        return self._batches

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, BatchSize]:
        """Return the mean loss over a batch, and the number of its examples."""
        inputs, labels = batch
        count = len(labels)
        with sparing_single_values(model) if count == 1 else nullcontext():
            return self._loss_fn(model(inputs), labels), BatchSize(count, count)


class BatchesAsTheyCome:
    """Data of any structure, batch by batch.

    Tensors and a Dataset are shuffled anew in each epoch, and cut into batches; a DataLoader, a
    list of batches or anything else that yields batches is taken as it comes. A batch none of
    whose targets counts for the loss is left out.

    Parameters
    ----------
    data : Tensor, dict or tuple of Tensor, Dataset, DataLoader or iterable of batches
        What can be gone through once for each epoch.
    objective : Objective
        The loss.
    batch_size : int
        >= 1.
    device : torch.device
        Where batches are moved to.
    """

    def __init__(
        self, data: Any, objective: Objective, batch_size: int, device: torch.device
    ) -> None:
        self._data, self._objective = data, objective
        self._batch_size, self._device = batch_size, device

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Any, BatchSize | None]]:
        """Yield batches on the device, each with its size where the batch alone tells it.

        Raises
        ------
        ValuationError
            If the data are none.
        DataError
            If batches can be gone through only once.
        """
        is_over = isinstance(self._data, Iterator)
        for batch in read_batches(self._data, None, self._batch_size, generator):
            is_over = False
            # Before it is moved: to read it on a GPU would be to wait for that.
            self._objective.check(batch)
            known = self._objective.known_size(batch)
            if known is None or known.weight:  # Else the mean would be 0 / 0.
                yield to_device(batch, self._device), known
        if is_over:
            raise DataError(
                "client_data gives its batches once; local training needs them in every epoch"
            )

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, BatchSize]:
        """Return the mean loss over a batch, and its size.

        Raises
        ------
        DataError
            If the loss is no scalar.
        """
        loss, size = self._objective.loss_and_size(model, *batch)
        if loss.dim():
            raise DataError(
                f"{self._objective.call} gives {describe(loss)} in training; expected a scalar "
                "tensor, the mean loss over the batch"
            )
        return loss, size


def _rows(examples: Tensor) -> Tensor:
    """View dense examples, in whichever memory format, as ``[n, values]``."""
    length = examples[0].numel()
    return examples.as_strided((len(examples), length), (length, 1))
