"""A loss tried for being a mean: the loss of a whole is then the mean of its parts' losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.batches import class_labels, join, map_tensors, num_rows, take_rows
from fedif_flower.tasks.modules import evaluation_mode
from fedif_flower.valuation.objective import Objective, PairObjective
from fedif_flower.valuation.subsample import draw_batches

_MOST = 64  # Examples it is tried on.
_ROUNDINGS = 1000  # A sum of so few terms is off by much less.


class _Split(NamedTuple):
    """A loss over some examples, over two parts of them, and by how much rounding moves it."""

    whole: float
    parts: tuple[float, ...]
    sizes: tuple[int, ...]
    mean: float
    rounding: float


def require_mean(model: nn.Module, objective: Objective, batches: Sequence[Any]) -> None:
    """Raise ConfigError if the mean of a loss over two parts is not its mean over the whole.

    It is tried on the model's outputs for examples from all over the data. Nothing is tried where
    the mean is known (``batch_loss`` tells its sizes, torch's cross-entropy its weights), or where
    outputs, targets or loss cannot be divided.

    Parameters
    ----------
    model : torch.nn.Module
        Evaluated once.
    objective : Objective
        Whose loss is tried.
    batches : sequence
        All of the data, at least one batch.
    """
    if not isinstance(objective, PairObjective) or objective.class_mean is not None:
        return
    try:
        splits = list(_splits(model, objective, batches))
    except Exception:  # A model may take one batch size alone; what it takes was tried before.
        return
    for split in splits:
        tolerance = split.rounding * max(map(abs, (split.whole, *split.parts)))
        if math.isfinite(split.whole) and not abs(split.whole - split.mean) <= tolerance:
            raise ConfigError(_words(split))


def _splits(model: nn.Module, objective: PairObjective, batches: Sequence[Any]) -> Iterator[_Split]:
    """Divide the outputs and targets of some examples in two, in two ways."""
    *inputs, targets = _some(batches)
    with evaluation_mode(model)():
        judged = map_tensors(_at_least_single, (model(*inputs), targets))
        count = num_rows(judged) or 0
        if (labels := class_labels(judged)) is not None:
            judged = take_rows(judged, labels.argsort(stable=True))  # Unlike parts differ most.
        whole = objective.loss_fn(*judged)
        for first in sorted({count // 3, count // 2} - {0}):
            rows = torch.split(torch.arange(count), [first, count - first])
            losses = [objective.loss_fn(*take_rows(judged, part)) for part in rows]
            yield _Split(
                float(whole),
                tuple(map(float, losses)),
                tuple(map(len, rows)),
                sum(float(x) * len(part) for x, part in zip(losses, rows, strict=True)) / count,
                _ROUNDINGS * torch.finfo(whole.dtype).eps,
            )


def _some(batches: Sequence[Any]) -> Any:
    """Return a batch of a few examples from all over the data, no more than a batch has."""
    lengths = [num_rows(batch) or 0 for batch in batches]
    if not all(lengths):
        return batches[0]
    count = min(max(*lengths, 2), _MOST)
    drawn = draw_batches(batches, count, torch.Generator().manual_seed(0)) or batches
    try:
        return join(drawn)
    except RuntimeError:  # Sequences of unlike lengths, say.
        return batches[0]


def _at_least_single(tensor: Tensor) -> Tensor:
    """Return half precision as float32: three digits would not tell a mean from another figure."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor


def _words(split: _Split) -> str:
    first, second = split.parts
    return (
        f"loss_fn gives {split.whole:.6g} for {sum(split.sizes)} examples, but {first:.6g} and "
        f"{second:.6g} for {split.sizes[0]} and {split.sizes[1]} of them, whose mean is "
        f"{split.mean:.6g}: results would depend on the batch size. Allowed: a mean over the "
        "examples; torch's cross_entropy, nll_loss, CrossEntropyLoss or NLLLoss (or a partial of "
        "one) for class weights and targets to ignore; else batch_loss(model, batch) -> (loss, "
        "what it divides by)"
    )
