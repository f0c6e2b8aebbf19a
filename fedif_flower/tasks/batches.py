"""Data as batches, and what can be told of data and loaders without reading them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.rows import cut_rows, num_rows
from fedif_flower.tasks.structures import as_tensors, describe, map_tensors, tensors_of


def read_batches(
    inputs: Any, targets: Any, batch_size: int, generator: torch.Generator | None = None
) -> Iterator[Any]:
    """Yield the batches of data of any kind: ``(inputs, targets)``, or what the data hold.

    Parameters
    ----------
    inputs : Tensor, dict or tuple of Tensor, Dataset, DataLoader or iterable of batches
        The data. Tensors have the examples in their first dimension; NumPy arrays may stand for
        them. A list is a list of batches.
    targets : Tensor, dict or tuple of Tensor, optional
        The targets, as many as examples. Allowed only if ``inputs`` is made of tensors.
    batch_size : int
        Examples per batch; not used if ``inputs`` comes in batches.
    generator : torch.Generator, optional
        Draws the order of examples; not used if ``inputs`` comes in batches or is a stream.
        ``None``: examples keep their order, even if ``inputs`` is a plain DataLoader that shuffles
        all of them. Such a loader then leaves the process's random state alone.

    Raises
    ------
    ValuationError
        If ``targets`` is given beside data that bring their own, tensors have different numbers of
        examples, or ``inputs`` is none of these kinds.
    """
    for batch in _batches(inputs, targets, batch_size, generator):
        yield _without_history(batch)


def _without_history(batch: Any) -> Any:
    """Return a batch whose tensors do not know how they were computed.

    They may be outputs of another model. A backward pass would go through that model too, which
    works once only. Gradients in the batch itself can still be taken where they could before.
    """

    def cut_off(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(tensor.requires_grad)

    if all(tensor.is_leaf for tensor in tensors_of(batch)):
        return batch
    return map_tensors(cut_off, batch)


def _batches(
    inputs: Any, targets: Any, batch_size: int, generator: torch.Generator | None
) -> Iterator[Any]:
    """Yield the batches of :func:`read_batches`; their tensors may know how they were computed."""
    if generator is None and _draws_all(inputs):
        inputs = _in_order(inputs)
    if isinstance(inputs, Tensor | np.ndarray | Mapping | tuple):
        examples = inputs if targets is None else (inputs, targets)
        yield from _split(as_tensors(examples), batch_size, generator)
        return
    if targets is not None:
        brings = ""
        if isinstance(inputs, Dataset | DataLoader):
            brings = ", which brings its own targets"
        raise ValuationError(
            f"inputs is {describe(inputs)}{brings}; allowed beside targets: tensors or NumPy "
            "arrays, as to_numpy() of a DataFrame gives them"
        )
    if _holds_examples(inputs):
        yield from _batches_of_examples(inputs, batch_size, generator)
    elif isinstance(inputs, Iterable):
        yield from map(as_tensors, inputs)
    else:
        raise ValuationError(
            f"inputs is {describe(inputs)}; allowed: tensors, a Dataset, a DataLoader, batches"
        )


def _holds_examples(data: Any) -> bool:
    """Return whether data hold single examples, as a Dataset does (a list holds batches)."""
    is_indexed = isinstance(data, Dataset) or hasattr(data, "__getitem__")
    return is_indexed and not isinstance(data, Sequence | DataLoader)


def _batches_of_examples(
    examples: Any, batch_size: int, generator: torch.Generator | None
) -> Iterator[Any]:
    """Yield batches of data that hand out single examples."""
    # A loader draws a seed even if it shuffles nothing. With a generator of its own it leaves the
    # process's random state alone.
    draws = torch.Generator() if generator is None else generator
    # A stream comes in its own order, and need not have a length.
    is_stream = isinstance(examples, IterableDataset) or not hasattr(examples, "__len__")
    if is_stream:
        yield from DataLoader(examples, batch_size, generator=draws)
    elif len(examples):
        shuffle = generator is not None
        yield from DataLoader(examples, batch_size, shuffle=shuffle, generator=draws)


def _split(examples: Any, batch_size: int, generator: torch.Generator | None) -> Iterator[Any]:
    """Yield batches of examples that lie in tensors, shuffled if there is a ``generator``."""
    count = num_rows(examples)
    if count is None:
        raise ValuationError(f"data need one number of examples, got {describe(examples)}")
    order = None
    if generator is not None:
        order = torch.randperm(count, generator=generator)
    for start in range(0, count, batch_size):
        rows: slice | Tensor = slice(start, start + batch_size)
        if order is not None:
            rows = order[rows]
        yield cut_rows(examples, count, rows)


def is_plain(data: Any, kind: type[Dataset[Any]]) -> bool:
    """Return whether a data set is of one of torch's classes, with that class's way of indexing.

    A user's subclass with another ``__getitem__`` may change examples: it may flip images, or
    replace NaN.
    """
    if not isinstance(data, kind):
        return False
    hands_out = ("__getitem__", "__getitems__", "__len__")
    data_type = type(data)
    return all(getattr(data_type, name, None) is getattr(kind, name, None) for name in hands_out)


def tensor_pair(data: Any) -> tuple[Tensor, Tensor] | None:
    """Return data as ``(inputs, targets)`` if they are two tensors of one length, else ``None``."""
    pair = data.tensors if is_plain(data, TensorDataset) else data
    if not isinstance(pair, tuple) or len(pair) != 2:
        return None
    inputs, targets = pair
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return None
    if num_rows(pair) is None:
        return None
    return inputs, targets


def count_examples(data: Any) -> int | None:
    """Return how many examples data hold; ``None`` if only reading them would tell."""
    if isinstance(data, Tensor | Mapping | tuple):
        return num_rows(data)
    if isinstance(data, Sequence):
        total = 0
        for batch in data:
            count = num_rows(batch)
            if count is None:
                return None
            total += count
        return total
    examples = data
    if isinstance(data, DataLoader):
        if not isinstance(data.batch_sampler, BatchSampler | None):
            return _count_drawn(data.batch_sampler)
        sampler = sampler_of(data)
        if isinstance(sampler, Sized):
            return len(sampler)
        examples = data.dataset
    if hasattr(examples, "__len__") and hasattr(examples, "__getitem__"):
        return len(examples)
    return None


def _count_drawn(batches: Iterable[Sequence[Any]]) -> int | None:
    """Return how many examples a batch sampler of the user's own draws in an epoch.

    Only its draws tell: it may draw a part of the data set. ``None`` if it has no length, since it
    may then go on for ever.
    """
    if not isinstance(batches, Sized):
        return None
    return sum(len(rows) for rows in islice(batches, len(batches)))


def count_dropped(data: Any) -> int:
    """Return how many examples a DataLoader leaves out because they fill no whole batch.

    It is 0 for a stream, whose length is not known.
    """
    if not isinstance(data, DataLoader) or not isinstance(data.batch_sampler, BatchSampler):
        return 0
    batches = data.batch_sampler
    if not batches.drop_last or not isinstance(batches.sampler, Sized):
        return 0
    return len(batches.sampler) % batches.batch_size


def sampler_of(loader: DataLoader[Any]) -> Iterable[Any] | None:
    """Return the sampler that draws a loader's examples; ``None`` if batches are drawn otherwise.

    A sampler may draw only a part of the data set, such as one client's part of the whole.
    """
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if isinstance(batches, BatchSampler) else None


def _draws_all(data: Any) -> bool:
    """Return whether data are a plain DataLoader that draws every example once, in any order."""
    if type(data) is not DataLoader:
        return False
    if data.batch_sampler is not None and type(data.batch_sampler) is not BatchSampler:
        return False
    if isinstance(data.dataset, IterableDataset):
        return True
    sampler = sampler_of(data)
    if type(sampler) is RandomSampler:
        draws_each_once = not sampler.replacement
    else:
        draws_each_once = type(sampler) is SequentialSampler
    if not draws_each_once or not isinstance(sampler, Sized):
        return False
    return len(sampler) == len(data.dataset)


def _in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader like this one, but without shuffling or a trace in the random state."""
    # The batch sampler knows the batch size: a loader made with a batch sampler has none itself.
    batch_size: int | None = None
    drop_last = False
    if isinstance(loader.batch_sampler, BatchSampler):
        batch_size = loader.batch_sampler.batch_size
        drop_last = loader.batch_sampler.drop_last
    return DataLoader(
        loader.dataset,
        batch_size=batch_size,
        drop_last=drop_last,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        # A loader always draws a seed: take it from a generator, not from the process's state.
        generator=loader.generator or torch.Generator(),
    )
