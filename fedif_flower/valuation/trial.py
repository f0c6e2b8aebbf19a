"""A model, its loss and its data tried together, before any client works for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.tasks.batches import (
    class_labels,
    describe,
    first_few,
    join,
    map_tensors,
    num_rows,
    take_rows,
)
from fedif_flower.tasks.modules import evaluation_mode, fastest_memory_format, to_memory_format
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.objective import Batch, Objective, PairObjective
from fedif_flower.valuation.parts import draw_batches

_MOST = 64  # Examples on which a loss is tried for being a mean.
_ROUNDINGS = 1000  # A sum of so few terms is off by much less.


def try_batches(
    model: FlatModel, objective: Objective, batches: Iterator[Any]
) -> tuple[list[Batch], frozenset[str]]:
    """Read all batches once the first has shown that they fit; return them, and what is defined.

    Parameters
    ----------
    model : FlatModel
        The model; its gradients stay as they are.
    objective : Objective
        Loss, and perhaps a score.
    batches : iterator
        The data, on the model's device. They come back in the memory format that is fastest.

    Raises
    ------
    ValuationError, ConfigError
        If there are no examples, something does not fit, or the loss is no mean over them.
    """
    module = model.module
    first = next(batches, None)
    if first is None:
        raise ValuationError("the validation set is empty")
    objective.check(first)

    def formatted(batch: Any, memory_format: torch.memory_format) -> Any:
        return map_tensors(lambda tensor: to_memory_format(tensor, memory_format), batch)

    def attempt(memory_format: torch.memory_format) -> None:
        differentiate(model, objective, formatted(first_few(first), memory_format))

    fastest = fastest_memory_format(module, attempt)
    batch = formatted(first, fastest)
    with _named(f"{objective.call} fails", batch):
        differentiate(model, objective, batch)
    metrics = frozenset(m for m in objective.metrics if _is_defined(module, objective, batch, m))
    contents = [formatted(batch, fastest) for batch in chain([first], batches)]
    require_mean(module, objective, contents)
    found = []
    for number, content in enumerate(contents, 1):
        with _named(f"{objective.call} fails", content, number), torch.no_grad():
            found.append(objective.sized(module, content, tried=False))
    found = [batch for batch in found if batch.size]
    if not any(batch.weight for batch in found):
        raise ValuationError("the validation set is empty: the loss counts none of its targets")
    return found, metrics


def differentiate(model: FlatModel, objective: Objective, batch: Any) -> None:
    """Take the gradient of the loss on a batch, and forget it.

    Raises
    ------
    ValuationError
        If the loss is no scalar that depends on a parameter.
    """
    found: Sequence[Tensor | None] = ()
    with torch.enable_grad():
        loss = objective.loss(model.module, batch)
        if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
            raise ValuationError(
                f"{objective.call} gives {describe(loss)}; expected a scalar tensor, "
                "the mean loss over the batch"
            )
        if loss.requires_grad:
            found = torch.autograd.grad(loss, list(model.parameters), allow_unused=True)
    if all(gradient is None for gradient in found):
        raise ValuationError(
            f"the loss of {objective.call} does not depend on a trainable parameter: nothing to "
            "train"
        )


@contextmanager
def _named(what: str, batch: Any, number: int = 1) -> Iterator[None]:
    """Turn whatever a user's functions raise on a batch into one sentence."""
    try:
        yield
    except ValuationError:
        raise
    except Exception as error:
        raise ValuationError(
            f"{what} on validation batch {number}, {describe(batch)}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _is_defined(model: nn.Module, objective: Objective, batch: Any, metric: str) -> bool:
    with _named(f"the {metric} cannot be taken", batch), evaluation_mode(model)():
        (total,) = objective.figures(model, batch, (metric,))
        if total.dim():
            raise ValueError(f"it is {describe(total)}; expected a number, the mean over the batch")
    return metric != "accuracy" or not bool(total.isnan())


def require_mean(model: nn.Module, objective: Objective, batches: Sequence[Any]) -> None:
    """Raise ConfigError if the mean of a loss over two parts is not its mean over the whole.

    It is tried on the model's outputs for examples from all over the data. Nothing is tried where
    the mean is known (``batch_loss`` tells its sizes, torch's cross-entropy its weights), or where
    batches, outputs, targets or loss cannot be divided.
    """
    if not isinstance(objective, PairObjective) or objective.class_mean is not None:
        return
    try:
        count = min(max(2, *(num_rows(batch) or 0 for batch in batches)), _MOST)
        drawn = draw_batches(batches, count, torch.Generator().manual_seed(0)) or batches
        *inputs, targets = join(drawn)
        with evaluation_mode(model)():
            judged = (model(*inputs), targets)
            if (labels := class_labels(judged)) is not None:
                judged = take_rows(judged, labels.argsort(stable=True))  # Unlike parts differ most.
            rows, whole = torch.arange(num_rows(judged) or 0), objective.loss_fn(*judged)
            sizes = [max(len(rows) // 3, 1), len(rows) - max(len(rows) // 3, 1)]
            parts = (take_rows(judged, own) for own in torch.split(rows, sizes))
            first, second = (float(objective.loss_fn(*part)) for part in parts)
    except Exception:  # A model may take one batch size alone; what it takes was tried before.
        return
    found, mean = float(whole), (sizes[0] * first + sizes[1] * second) / len(rows)
    allowed = _ROUNDINGS * torch.finfo(whole.dtype).eps * max(abs(found), abs(first), abs(second))
    if sizes[1] and math.isfinite(found) and not abs(found - mean) <= allowed:
        raise ConfigError(
            f"loss_fn gives {found:.6g} for {len(rows)} examples, but {first:.6g} and {second:.6g} "
            f"for {sizes[0]} and {sizes[1]} of them, whose mean is {mean:.6g}: results would "
            "depend on the batch size. Allowed: a mean over the examples; torch's cross_entropy, "
            "nll_loss, CrossEntropyLoss or NLLLoss (or a partial of one) for class weights and "
            "targets to ignore; else batch_loss(model, batch) -> (loss, what it divides by)"
        )
