"""Data in the batches in which a model sees them, and what their loaders say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
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
    TensorDataset,
)

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.rows import cut_rows, num_rows
from fedif_flower.tasks.structures import as_tensors, describe


def read_batches(
    inputs: Any, targets: Any, batch_size: int, generator: torch.Generator | None = None
) -> Iterator[Any]:
    """Yield batches as a loader yields them: ``(inputs, targets)``, or whatever else there is.

    Parameters
    ----------
    inputs : Tensor, dict or tuple of Tensor, Dataset, DataLoader or iterable of batches
        Tensors have the examples in their first dimension; NumPy arrays are as good. A list is a
        list of batches.
    targets : Tensor, dict or tuple of Tensor, optional
        Beside ``inputs`` made of tensors, with as many examples.
    batch_size : int
        Examples per batch, except where ``inputs`` comes in batches.
    generator : torch.Generator, optional
        Draws the order of examples, except where ``inputs`` comes in batches, or is a stream;
        ``None``: as they lie, also where a DataLoader of torch's own would shuffle them all.

    Raises
    ------
    ValuationError
        If inputs and targets do not go together.
    """
    if generator is None and _shuffles_all(inputs):
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
    """Tell whether data hold single examples: a Dataset does, of torch or not; a list batches."""
    is_indexed = isinstance(data, Dataset) or hasattr(data, "__getitem__")
    return is_indexed and not isinstance(data, Sequence | DataLoader)


def _batches_of_examples(
    examples: Any, batch_size: int, generator: torch.Generator | None
) -> Iterator[Any]:
    """Yield batches of data that hand out single examples."""
    # A loader draws a seed in any case: not from the process, where nothing is shuffled.
    draws = torch.Generator() if generator is None else generator
    # A stream comes in an order of its own; it need not have a length.
    is_stream = isinstance(examples, IterableDataset) or not hasattr(examples, "__len__")
    if is_stream:
        yield from DataLoader(examples, batch_size, generator=draws)
    elif len(examples):
        shuffle = generator is not None
        yield from DataLoader(examples, batch_size, shuffle=shuffle, generator=draws)


def _split(examples: Any, batch_size: int, generator: torch.Generator | None) -> Iterator[Any]:
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
    """Tell whether a data set is of a kind of torch's, and hands out its examples as that does.

    One of a user's own may change them: it turns images around, say, or fills NaN in.
    """
    if not isinstance(data, kind):
        return False
    hands_out = ("__getitem__", "__getitems__", "__len__")
    data_type = type(data)
    return all(getattr(data_type, name, None) is getattr(kind, name, None) for name in hands_out)


def tensor_pair(data: Any) -> tuple[Tensor, Tensor] | None:
    """Return data as ``(inputs, targets)`` if they are two tensors of one length."""
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
    """Return how many examples data hold, where that can be told without reading them."""
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
        sampler = sampler_of(data)
        if isinstance(sampler, Sized):
            return len(sampler)
        examples = data.dataset
    if hasattr(examples, "__len__") and hasattr(examples, "__getitem__"):
        return len(examples)
    return None


def count_dropped(data: Any) -> int:
    """Return how many examples a DataLoader leaves out since they fill no batch.

    Of a stream, which has no length, none are known.
    """
    if not isinstance(data, DataLoader) or not isinstance(data.batch_sampler, BatchSampler):
        return 0
    batches = data.batch_sampler
    if not batches.drop_last or not isinstance(batches.sampler, Sized):
        return 0
    return len(batches.sampler) % batches.batch_size


def sampler_of(loader: DataLoader[Any]) -> Iterable[Any] | None:
    """Return what draws a loader's examples; ``None`` where a user's own draws its batches.

    It may draw a part of the data set: one client's, say, of the whole.
    """
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if isinstance(batches, BatchSampler) else None


def _shuffles_all(data: Any) -> bool:
    """Tell whether data are a DataLoader that is as torch makes it with ``shuffle=True``."""
    if type(data) is not DataLoader:
        return False
    if data.batch_sampler is not None and type(data.batch_sampler) is not BatchSampler:
        return False
    sampler = sampler_of(data)
    if type(sampler) is not RandomSampler or sampler.replacement:
        return False
    return len(sampler) == len(data.dataset)  # type: ignore[arg-type]


def _in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader of the same batches' size whose examples come as they lie."""
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        # It draws a seed in any case: not from the process.
        generator=loader.generator or torch.Generator(),
    )
