"""A random part of a validation set: stratified by class, every example with the same chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedif_flower.tasks.batches import class_labels, join, num_rows, take_of_all


def draw_rows(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    r"""Draw ``count`` of n examples, each with the chance :math:`k / n`, in equal shares by class.

    The examples are shuffled, sorted by class, and every :math:`n / k`-th is taken from a random
    place on (systematic sampling), so that a class of :math:`n_c` examples gives
    :math:`k n_c / n`, rounded up or down.

    Parameters
    ----------
    labels : Tensor
        ``[n]``, of any integer type.
    count : int
        k, in [1, n].
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    Tensor
        ``[k]`` int64, ascending.

    References
    ----------
    Madow and Madow, "On the Theory of Systematic Sampling", 1944.
    """
    total = len(labels)
    shuffled = torch.randperm(total, generator=generator)
    by_class = shuffled[torch.argsort(labels.cpu()[shuffled], stable=True)]
    start = torch.rand((), generator=generator, dtype=torch.float64)
    places = ((torch.arange(count, dtype=torch.float64) + start) * total / count).long()
    return by_class[places.clamp_max(total - 1)].sort().values


def draw_batches(
    batches: Sequence[Any], count: int, generator: torch.Generator
) -> list[Any] | None:
    """Return ``count`` examples of batches, drawn by :func:`draw_rows`, in as large batches.

    Returns
    -------
    list, optional
        ``None`` where there are no more than ``count``, or where a batch's tensors do not count its
        examples, so that none can be taken out.
    """
    lengths = [num_rows(batch) or 0 for batch in batches]
    if 0 in lengths or sum(lengths) <= count:
        return None
    labels = [class_labels(batch) for batch in batches]
    known = [label for label in labels if label is not None]
    every = torch.cat(known) if len(known) == len(batches) else torch.zeros(sum(lengths))
    taken = take_of_all(batches, draw_rows(every, count, generator))
    together = max(len(batches) * max(lengths) // max(count, 1), 1)
    return [join(taken[i : i + together]) for i in range(0, len(taken), together)]
