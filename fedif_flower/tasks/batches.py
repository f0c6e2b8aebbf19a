"""Data in the batches in which a model sees them: any structure, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from fedif_flower.errors import ValuationError


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
        # A stream comes in an order of its own; it need not have a length.
        is_stream = isinstance(inputs, IterableDataset) or not hasattr(inputs, "__len__")
        if is_stream or len(inputs):
            shuffle = generator is not None and not is_stream
            # It draws a seed in any case: not from the process, where nothing is shuffled.
            draws = generator or torch.Generator()
            yield from DataLoader(inputs, batch_size, shuffle=shuffle, generator=draws)
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


def as_tensors(value: Any) -> Any:
    """Return a structure of dicts, lists and tuples with tensors in place of NumPy arrays.

    Without any it is returned as it is: an object of its own kind may know more.

    Raises
    ------
    ValuationError
        If an array does not hold numbers.
    """
    tensors: list[Tensor] = []

    def to_tensor(values: NDArray[Any]) -> Tensor:
        if values.dtype.kind not in "biufc":
            raise ValuationError(f"a NumPy array has dtype {values.dtype}; allowed: numbers")
        native = np.asarray(values, dtype=values.dtype.newbyteorder("="), order="C")
        if not native.flags.writeable:
            native = native.copy()  # The tensor shares the memory, and may be written to.
        tensor = torch.from_numpy(native)
        tensors.append(tensor)
        return tensor

    changed = _map(lambda item: isinstance(item, np.ndarray), to_tensor, value)
    if not tensors:
        return value
    return changed


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a structure of dicts, lists and tuples with every tensor in it changed."""
    return _map(lambda item: isinstance(item, Tensor), change, value)


def _map(chosen: Callable[[Any], bool], change: Callable[[Any], Any], value: Any) -> Any:
    """Return a structure with what is chosen in it changed."""
    if chosen(value):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map(chosen, change, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _rebuilt(value, [_map(chosen, change, item) for item in value])
    return value


def _rebuilt(sequence: Any, items: list[Any]) -> Any:
    """Return a list or tuple of the same kind as another, of other items."""
    is_named_tuple = hasattr(sequence, "_fields")
    if is_named_tuple:
        return type(sequence)(*items)
    return type(sequence)(items)


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors of a structure of dicts, lists and tuples."""
    tensors: list[Tensor] = []
    map_tensors(tensors.append, value)
    return tensors


def leaves_of(value: Any) -> list[Any]:
    """Return what a structure of dicts, lists and tuples is made of: tensors, strings, numbers."""
    leaves: list[Any] = []
    _map(lambda item: not isinstance(item, Mapping | list | tuple), leaves.append, value)
    return leaves


def to_device(value: Any, device: torch.device) -> Any:
    """Move a structure to a device; an object with a ``to`` of its own is moved by it."""
    has_to = callable(getattr(value, "to", None))
    if has_to:
        return value.to(device)
    return map_tensors(lambda tensor: tensor.to(device), value)


def num_examples(targets: Any) -> int:
    """Return how many examples a batch's targets are for."""
    tensors = tensors_of(targets)
    if tensors and tensors[0].dim():
        return len(tensors[0])
    return len(targets)


def first_few(batch: Any) -> Any:
    """Return the first two examples of a batch if its tensors have one length, else all of it."""
    count = num_rows(batch)
    if count is None:
        return batch
    # Two: a model that calls ``squeeze`` treats a single one differently.
    return _cut(batch, count, slice(2))


def take_rows(batch: Any, rows: Tensor) -> Any:
    """Return the examples of a batch at ``rows`` [k]; its tensors must have one length."""
    return _cut(batch, num_rows(batch), rows)


def _rows_of(column: Tensor, rows: slice | Tensor) -> Tensor:
    """Return the rows of a tensor, wherever the tensor of their places lies."""
    if isinstance(rows, Tensor):
        rows = rows.to(column.device)
    return column[rows]


def _cut(batch: Any, count: int | None, rows: slice | Tensor) -> Any:
    """Return the examples at ``rows`` of a batch of ``count``."""

    def cut(column: Any) -> Any:
        if isinstance(column, Tensor):
            return _rows_of(column, rows)
        places = range(len(column))[rows] if isinstance(rows, slice) else rows.tolist()
        items = [column[place] for place in places]
        return items if isinstance(column, list) else tuple(items)

    return _map(lambda part: _is_column(part, count), cut, batch)


def _is_column(part: Any, count: int | None) -> bool:
    """Tell whether a part of a batch of ``count`` has an item for each example.

    Tensors do, and so do lists of as many strings, or of whatever else holds no tensor.
    """
    if isinstance(part, Tensor):
        return True
    is_as_long = isinstance(part, list | tuple) and len(part) == count
    return is_as_long and not tensors_of(part)


def take_of_all(batches: Sequence[Any], rows: Tensor) -> list[Any]:
    """Return the examples at ``rows`` [k], ascending, as numbered through all batches, by batch."""
    selected = []
    start = 0
    for batch in batches:
        end = start + (num_rows(batch) or 0)
        rows_in_batch = rows[(rows >= start) & (rows < end)] - start
        if len(rows_in_batch):
            selected.append(take_rows(batch, rows_in_batch))
        start = end
    return selected


def join(batches: Sequence[Any]) -> Any:
    """Return batches of one structure as a single one.

    Raises
    ------
    ValuationError
        If they differ in more than their examples: in the length of sequences, where each batch is
        padded for itself, in their keys, or in a number that is a whole batch's.
    """
    return _joined(batches, [num_rows(batch) for batch in batches])


def _joined(parts: Sequence[Any], counts: Sequence[int | None]) -> Any:
    """Return the same part of several batches, of so many examples each, as a single one."""
    first = parts[0]
    if isinstance(first, Tensor):
        _require_alike(parts)
        return torch.cat(tuple(parts))
    if all(map(_is_column, parts, counts)):
        items = list(chain.from_iterable(parts))
        return items if isinstance(first, list) else tuple(items)
    _require_alike(parts)
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts], counts) for key in first}
    if isinstance(first, list | tuple):
        joined = [_joined(items, counts) for items in zip(*parts, strict=True)]
        return _rebuilt(first, joined)
    return first


def _require_alike(parts: Sequence[Any]) -> None:
    """Raise ValuationError if the same parts of several batches differ in more than examples."""
    first = parts[0]
    for part in parts[1:]:
        if not _are_alike(first, part):
            raise ValuationError(
                "batches that differ in more than their examples cannot be joined: "
                f"{describe(first)} and {describe(part)}"
            )


def _are_alike(part: Any, other: Any) -> bool:
    """Tell whether two parts have one form; what is made of nothing else has to be one value."""
    if isinstance(part, Tensor) or isinstance(other, Tensor):
        are_tensors = isinstance(part, Tensor) and isinstance(other, Tensor)
        return are_tensors and part.shape[1:] == other.shape[1:]
    if isinstance(part, Mapping):
        return isinstance(other, Mapping) and part.keys() == other.keys()
    if isinstance(part, list | tuple):
        return isinstance(other, list | tuple) and len(part) == len(other)
    try:
        return part is other or bool(part == other)
    except Exception:  # Out of a comparison of the user's own objects.
        return False


def num_rows(batch: Any) -> int | None:
    """Return the length that all tensors of a batch have; ``None`` if they differ."""
    tensors = tensors_of(batch)
    if any(tensor.dim() == 0 for tensor in tensors):
        return None
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) != 1:
        return None
    return lengths.pop()


def holds_classes(labels: Tensor) -> bool:
    """Tell whether labels can be classes: probabilities are none."""
    return not labels.is_floating_point() and not labels.is_complex()


def class_labels(batch: Any) -> Tensor | None:
    """Return the integer targets ``[n]`` that end a batch; ``None`` where there are no such."""
    if not isinstance(batch, list | tuple) or not batch:
        return None
    targets = batch[-1]
    if not isinstance(targets, Tensor) or targets.dim() != 1:
        return None
    return targets if holds_classes(targets) else None


def describe(value: Any) -> str:
    """Return types and shapes for an error message: ``(float32 [8, 3], int64 [8])``."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"NumPy array {value.dtype} {list(value.shape)}"
    if isinstance(value, Mapping):
        items = [f"{key!r}: {describe(item)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple) and len(value) <= 8:
        return f"{type(value).__name__} ({', '.join(map(describe, value))})"
    return type(value).__name__


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
        yield _cut(examples, count, rows)


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
        sampler = _sampler_of(data)
        if isinstance(sampler, Sized):
            return len(sampler)
        examples = data.dataset
    if hasattr(examples, "__len__") and hasattr(examples, "__getitem__"):
        return len(examples)
    return None


def _sampler_of(loader: DataLoader[Any]) -> Iterable[Any] | None:
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
    sampler = _sampler_of(data)
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


def _hands_out_all(loader: DataLoader[Any]) -> bool:
    """Tell whether a loader's batches are made of all examples of its data set, as they are."""
    is_plain_collate = loader.collate_fn in (default_collate, default_convert)
    draws_all = isinstance(_sampler_of(loader), SequentialSampler | RandomSampler)
    return is_plain_collate and draws_all


class NotFinite(NamedTuple):
    """How many examples hold NaN, and how many of the others an infinite number."""

    nan: int
    infinite: int


def count_not_finite(data: Any) -> NotFinite | None:
    """Return how many examples hold NaN or infinite numbers, where data lie in memory.

    Parameters
    ----------
    data : Tensor, dict or tuple of Tensor, list of batches, TensorDataset, or DataLoader or Subset
        What is read from a disk, or made as it is asked for, is not looked at: ``None``.
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
    """Return how many examples hold NaN or infinite numbers, of data that can be read again."""
    counts = count_not_finite(data)
    if counts is not None:
        return counts
    if isinstance(data, Iterator):
        return NotFinite(0, 0)  # It is over.
    return _added(map(_of_rows, read_batches(data, None, batch_size=100)))


def _of_rows(batch: Any) -> NotFinite:
    """Return the counts of a batch; of one whose tensors differ in length, as of one example."""
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
    floating = _floating(as_tensors(example))
    has_nan = any(bool(tensor.isnan().any()) for tensor in floating)
    has_infinite = any(bool(tensor.isinf().any()) for tensor in floating)
    return NotFinite(int(has_nan), int(has_infinite and not has_nan))


def _floating(value: Any) -> list[Tensor]:
    """Return the tensors of a structure that can hold NaN."""
    return [tensor for tensor in tensors_of(value) if tensor.is_floating_point()]


def _added(counts: Iterable[NotFinite]) -> NotFinite:
    nan = infinite = 0
    for count in counts:
        nan += count.nan
        infinite += count.infinite
    return NotFinite(nan, infinite)
