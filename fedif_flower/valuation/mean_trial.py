"""A loss tried for being a mean: the loss of a whole is then the mean of its parts' losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.batches import class_labels, join, map_tensors, num_rows, take_rows
from fedif_flower.tasks.modules import evaluation_mode
from fedif_flower.valuation.objective import Objective, PairObjective
from fedif_flower.valuation.subsample import draw_batches

_MOST = 64  # Examples it is tried on.
_ROUNDINGS = 1000  # A sum of so few terms is off by much less.


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
        *inputs, targets = _some(batches)
        with evaluation_mode(model)():
            judged = map_tensors(_at_least_single, (model(*inputs), targets))
            count = num_rows(judged) or 0
            if (labels := class_labels(judged)) is not None:
                judged = take_rows(judged, labels.argsort(stable=True))  # Unlike parts differ most.
            whole = objective.loss_fn(*judged)
            tolerance = _ROUNDINGS * torch.finfo(whole.dtype).eps
            splits = [[first, count - first] for first in sorted({count // 3, count // 2} - {0})]
            parts = [
                [
                    float(objective.loss_fn(*take_rows(judged, rows)))
                    for rows in torch.split(torch.arange(count), sizes)
                ]
                for sizes in splits
            ]
    except Exception:  # A model may take one batch size alone; what it takes was tried before.
        return
    for (size, rest), (first, second) in zip(splits, parts, strict=True):
        found, mean = float(whole), (size * first + rest * second) / count
        allowed = tolerance * max(abs(found), abs(first), abs(second))
        if math.isfinite(found) and not abs(found - mean) <= allowed:
            raise ConfigError(
                f"loss_fn gives {found:.6g} for {count} examples, but {first:.6g} and "
                f"{second:.6g} for {size} and {rest} of them, whose mean is {mean:.6g}: results "
                "would depend on the batch size. Allowed: a mean over the examples; torch's "
                "cross_entropy, nll_loss, CrossEntropyLoss or NLLLoss (or a partial of one) for "
                "class weights and targets to ignore; else batch_loss(model, batch) -> (loss, "
                "what it divides by)"
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
