"""The examples of a held-out set, one by one: their labels, and digests of their inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.rows import class_labels, count_rows, join, num_rows, take_rows
from fedif_flower.tasks.structures import leaves_of
from fedif_flower.valuation.objective import PairObjective
from fedif_flower.valuation.validation import Validation


def count_held_out(validation: Validation) -> int:
    """Return how many examples a held-out set has whose target counts.

    The sizes that a ``batch_loss`` returns may be numbers of tokens, or sums of weights. So rows
    are counted there, if batches can be divided into them.
    """
    if not isinstance(validation.judge.objective, PairObjective):
        rows = [count_rows(batch.content) for batch in validation.batches]
        if all(rows):
            return sum(rows)
    return int(validation.num_examples)


def labelled_examples(validation: Validation) -> tuple[Any, Tensor]:
    """Return all examples whose label counts, as one batch, and their indices in the data ``[n]``.

    The targets must be classes. The batch is ``None`` if single examples cannot be taken out of the
    batches, or if they do not fit into one batch.
    """
    contents = [batch.content for batch in validation.batches]
    lengths = []
    for content in contents:
        length = num_rows(content)
        if length is None:
            return None, torch.empty(0)
        lengths.append(length)
    try:
        whole = join(contents)
    except ValuationError:
        return None, torch.empty(0)
    labels = class_labels(whole)
    assert labels is not None  # Callers have made sure that the validation has an accuracy.
    rows = validation.judge.objective.counts(labels).nonzero().flatten().cpu()
    if len(rows) < len(labels):
        whole = take_rows(whole, rows)
    *inputs, targets = whole
    # Batches in which no example counts are not kept, but indices count their examples, too.
    skipped = torch.tensor([batch.skipped for batch in validation.batches])
    skipped_before = skipped.repeat_interleave(torch.tensor(lengths))  # For each row.
    return (*inputs, targets.long()), rows + skipped_before[rows]


def input_digests(validation: Validation) -> list[bytes]:
    """Return a digest of the inputs of each example whose target counts.

    The list is empty if single examples cannot be taken out of the batches.
    """
    digests: list[bytes] = []
    for batch in validation.batches:
        content = batch.content
        count = num_rows(content)
        if count is None or not isinstance(content, list | tuple):
            return []
        counted = torch.ones(count, dtype=torch.bool)
        if isinstance(content[-1], Tensor):
            counted = validation.judge.objective.counts(content[-1])
        rows = counted.nonzero().flatten().cpu()
        digests += _row_digests(list(content[:-1]), count, rows)
    return digests


def _row_digests(inputs: list[Any], count: int, rows: Tensor) -> list[bytes]:
    """Return a digest of the inputs of each example at ``rows``, out of ``count`` examples."""
    leaves = leaves_of(inputs)
    if all(isinstance(leaf, Tensor) for leaf in leaves):
        return _row_digests_of_tensors(leaves, count, rows)
    digests = []
    for row in rows:
        example = take_rows(inputs, row[None])
        digests.append(_digest(_as_bytes(leaf) for leaf in leaves_of(example)))
    return digests


def _row_digests_of_tensors(tensors: list[Tensor], count: int, rows: Tensor) -> list[bytes]:
    """Return the digests for inputs that are all tensors ``[count, ...]``: this is much faster."""
    arrays = []  # [count, bytes of an example] each.
    for tensor in tensors:
        values = tensor.cpu().reshape(count, -1).contiguous()
        arrays.append(values.view(torch.uint8).numpy())
    digests = []
    for row in rows.tolist():
        example = [array[row].tobytes() for array in arrays]
        digests.append(_digest(example))
    return digests


def _digest(parts: Iterable[bytes]) -> bytes:
    """Return one digest of all parts together."""
    together = hashlib.blake2b(digest_size=16)
    for part in parts:
        together.update(part)
    return together.digest()


def _as_bytes(leaf: Any) -> bytes:
    """Return one example's tensor, string or number as bytes, to be told from others."""
    if isinstance(leaf, Tensor):
        return leaf.cpu().reshape(1, -1).contiguous().view(torch.uint8).numpy().tobytes()
    return repr(leaf).encode()
