"""How many examples of a data set hold NaN or infinite numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from fedif_flower.tasks.batches import is_plain, read_batches, sampler_of
from fedif_flower.tasks.rows import num_rows
from fedif_flower.tasks.structures import as_tensors, tensors_of


class NotFinite(NamedTuple):
    """The number of examples that hold NaN, and of those that hold Inf but no NaN."""

    nan: int
    infinite: int


def count_not_finite(data: Any) -> NotFinite | None:
    """Return how many examples hold NaN or infinite numbers, if the data lie in memory.

    Parameters
    ----------
    data : Tensor, dict or tuple of Tensor, list of batches, TensorDataset, DataLoader or Subset
        The data. A DataLoader or Subset counts as in memory if the data set in it is.

    Returns
    -------
    NotFinite or None
        The counts; ``None`` for data that are read from a disk or made on demand.
    """
    if isinstance(data, DataLoader):
        if not _hands_out_all(data):
            return None
        examples = data.dataset
        if isinstance(examples, list):
            return _added(map(_of_one, examples))
        return count_not_finite(examples)
    if is_plain(data, Subset):
        whole = data.dataset
        rows = list(data.indices)
        if isinstance(whole, list):
            return _added(_of_one(whole[row]) for row in rows)
        if is_plain(whole, TensorDataset):
            return _of_rows(tuple(tensor[rows] for tensor in whole.tensors))
        return None
    if is_plain(data, TensorDataset):
        return _of_rows(data.tensors)
    if isinstance(data, list):
        return _added(map(_of_rows, data))
    if isinstance(data, Tensor | np.ndarray | Mapping | tuple):
        return _of_rows(data)
    return None


def read_not_finite(data: Any) -> NotFinite:
    """Return how many examples hold NaN or infinite numbers, reading the data if need be.

    An iterator can be read only once, and its examples are gone: it counts as having none.
    """
    counts = count_not_finite(data)
    if counts is not None:
        return counts
    if isinstance(data, Iterator):
        return NotFinite(0, 0)
    return _added(map(_of_rows, read_batches(data, None, batch_size=100)))


def _hands_out_all(loader: DataLoader[Any]) -> bool:
    """Return whether a loader hands out all examples of its data set, unchanged."""
    is_plain_collate = loader.collate_fn in (default_collate, default_convert)
    draws_all = isinstance(sampler_of(loader), SequentialSampler | RandomSampler)
    return is_plain_collate and draws_all


def _of_rows(batch: Any) -> NotFinite:
    """Return the counts of a batch; if its tensors differ in length, it counts as one example."""
    batch = as_tensors(batch)
    floating = _floating(batch)
    if not floating:
        return NotFinite(0, 0)
    if num_rows(floating) is None:
        return _of_one(batch)
    nan = torch.zeros(len(floating[0]), dtype=torch.bool)
    infinite = nan.clone()
    for tensor in floating:
        rows = tensor.detach().cpu().unsqueeze(1).flatten(1)  # [n, values]
        nan |= rows.isnan().any(dim=1)
        infinite |= rows.isinf().any(dim=1)
    return NotFinite(int(nan.sum()), int((infinite & ~nan).sum()))


def _of_one(example: Any) -> NotFinite:
    """Return the counts of a single example, 0 or 1 each."""
    floating = _floating(as_tensors(example))
    has_nan = any(bool(tensor.isnan().any()) for tensor in floating)
    has_infinite = any(bool(tensor.isinf().any()) for tensor in floating)
    return NotFinite(int(has_nan), int(has_infinite and not has_nan))


def _floating(value: Any) -> list[Tensor]:
    """Return the floating-point and complex tensors of a structure: integers are always finite."""
    tensors = tensors_of(value)
    return [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]


def _added(counts: Iterable[NotFinite]) -> NotFinite:
    nan = infinite = 0
    for count in counts:
        nan += count.nan
        infinite += count.infinite
    return NotFinite(nan, infinite)
