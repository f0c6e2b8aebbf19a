"""The examples (rows) of batches: count them, take some of them, join batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.structures import (
    change_chosen,
    describe,
    rebuilt,
    rebuilt_mapping,
    tensors_of,
)


def num_rows(batch: Any) -> int | None:
    """Return the length that all tensors of a batch share; ``None`` if there is no such length."""
    tensors = tensors_of(batch)
    if any(tensor.dim() == 0 for tensor in tensors):
        return None
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) != 1:
        return None
    return lengths.pop()


def count_rows(batch: Any) -> int:
    """Return how many examples a batch has; 0 if single examples cannot be taken from it."""
    count = num_rows(batch)
    return 0 if count is None else count


def num_examples(targets: Any) -> int:
    """Return how many examples a batch's targets belong to."""
    tensors = tensors_of(targets)
    if tensors and tensors[0].dim():
        return len(tensors[0])
    return len(targets)


def first_two(batch: Any) -> Any:
    """Return the first two examples of a batch if its tensors share a length, else all of it."""
    count = num_rows(batch)
    if count is None:
        return batch
    # Two and not one: a model that calls ``squeeze`` treats a single example differently.
    return cut_rows(batch, count, slice(2))


def take_rows(batch: Any, rows: Tensor) -> Any:
    """Return the examples of a batch at ``rows`` [k]; its tensors must share a length."""
    return cut_rows(batch, num_rows(batch), rows)


def take_of_all(batches: Sequence[Any], rows: Tensor) -> list[Any]:
    """Return the examples at ``rows`` [k], as one batch for each batch that has some of them.

    Rows number the examples through all batches, and ascend.
    """
    selected = []
    start = 0
    for batch in batches:
        end = start + count_rows(batch)
        rows_in_batch = rows[(rows >= start) & (rows < end)] - start
        if len(rows_in_batch):
            selected.append(take_rows(batch, rows_in_batch))
        start = end
    return selected


def cut_rows(batch: Any, count: int | None, rows: slice | Tensor) -> Any:
    """Return the examples at ``rows`` of a batch of ``count`` examples."""

    def cut(column: Any) -> Any:
        if isinstance(column, Tensor):
            return _rows_of(column, rows)
        places = range(len(column))[rows] if isinstance(rows, slice) else rows.tolist()
        items = [column[place] for place in places]
        return items if isinstance(column, list) else tuple(items)

    return change_chosen(lambda part: _is_column(part, count), cut, batch)


def _rows_of(column: Tensor, rows: slice | Tensor) -> Tensor:
    """Return the rows of a tensor; ``rows`` may lie on another device."""
    if isinstance(rows, Tensor):
        rows = rows.to(column.device)
    return column[rows]


def _is_column(part: Any, count: int | None) -> bool:
    """Return whether a part of a batch of ``count`` examples has one item for each example.

    Tensors have. Lists and tuples have if there are ``count`` items in them, such as strings, and
    no tensors.
    """
    if isinstance(part, Tensor):
        return True
    is_as_long = isinstance(part, list | tuple) and len(part) == count
    return is_as_long and not tensors_of(part)


def join(batches: Sequence[Any]) -> Any:
    """Join batches of one structure into a single batch.

    Raises
    ------
    ValuationError
        If the batches differ in more than their examples: in the length of sequences, when each
        batch is padded to a length of its own, in their keys, or in a value that belongs to a whole
        batch.
    """
    return _joined(batches, [num_rows(batch) for batch in batches])


def _joined(parts: Sequence[Any], counts: Sequence[int | None]) -> Any:
    """Join the same part of several batches; ``counts`` are the batches' numbers of examples."""
    first = parts[0]
    if isinstance(first, Tensor):
        _require_alike(parts)
        return torch.cat(tuple(parts))
    # A list with one item for each example is appended; any other list or dict holds parts itself.
    # Such columns may differ in length, so they come before the check that parts are alike.
    if all(map(_is_column, parts, counts)):
        items = list(chain.from_iterable(parts))
        return items if isinstance(first, list) else tuple(items)
    _require_alike(parts)
    if isinstance(first, Mapping):
        joined_items = {key: _joined([part[key] for part in parts], counts) for key in first}
        return rebuilt_mapping(first, joined_items)
    if isinstance(first, list | tuple):
        joined = [_joined(items, counts) for items in zip(*parts, strict=True)]
        return rebuilt(first, joined)
    return first  # A value that belongs to a whole batch, such as a number, and is equal in all.


def _require_alike(parts: Sequence[Any]) -> None:
    """Raise ValuationError if the same part differs between batches in more than its examples."""
    first = parts[0]
    for part in parts[1:]:
        if not _are_alike(first, part):
            raise ValuationError(
                "batches that differ in more than their examples cannot be joined: "
                f"{describe(first)} and {describe(part)}"
            )


def _are_alike(part: Any, other: Any) -> bool:
    """Return whether two parts have the same form; values that hold no parts must be equal."""
    if isinstance(part, Tensor) and isinstance(other, Tensor):
        return part.shape[1:] == other.shape[1:]
    if isinstance(part, Tensor) or isinstance(other, Tensor):
        return False
    if isinstance(part, Mapping):
        return isinstance(other, Mapping) and part.keys() == other.keys()
    if isinstance(part, list | tuple):
        return isinstance(other, list | tuple) and len(part) == len(other)
    try:
        return part is other or bool(part == other)
    except Exception:  # A comparison of a user's own objects may raise anything.
        return False


def holds_classes(labels: Tensor) -> bool:
    """Return whether labels can be classes: integers or booleans, not probabilities."""
    return not labels.is_floating_point() and not labels.is_complex()


def class_labels(batch: Any) -> Tensor | None:
    """Return a batch's last item if it is class labels ``[n]``; otherwise ``None``."""
    if not isinstance(batch, list | tuple) or not batch:
        return None
    targets = batch[-1]
    if not isinstance(targets, Tensor) or targets.dim() != 1:
        return None
    return targets if holds_classes(targets) else None
