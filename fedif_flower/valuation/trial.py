"""A model, its loss and its data tried together, before any client works for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.batches import describe, first_few, map_tensors
from fedif_flower.tasks.modules import evaluation_mode, fastest_memory_format, to_memory_format
from fedif_flower.valuation.batch_weight import Batch
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.mean_trial import require_mean
from fedif_flower.valuation.objective import Objective

FEW = 2  # Examples: a model that calls ``squeeze`` treats a single one differently.


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
        few = formatted(first_few(first, FEW), memory_format)
        differentiate(module, model.parameters, objective, few)

    fastest = fastest_memory_format(module, attempt)
    metrics = defined_metrics(module, model.parameters, objective, formatted(first, fastest))
    with torch.no_grad():
        contents = (formatted(batch, fastest) for batch in chain([first], batches))
        found = [b for content in contents if (b := sized(module, objective, content)).size]
    if not any(batch.weight for batch in found):
        raise ValuationError("the validation set is empty: the loss counts none of its targets")
    require_mean(module, objective, [batch.content for batch in found])
    return found, metrics


def sized(model: nn.Module, objective: Objective, content: Any) -> Batch:
    """Return a batch with its size.

    Raises
    ------
    ValuationError
        If the loss that tells the size is NaN, although the size is not 0.
    """
    if (size := objective.known_size(content)) is None:
        loss, size = objective.loss_and_size(model, content)
        if size.weight and bool(loss.isnan().any()):
            raise ValuationError(
                f"{objective.call} gives NaN on a batch of the validation set, and the size "
                f"{size.weight:g}: {describe(content)}; expected a number, or the size 0 where no "
                "example counts"
            )
    return Batch(content, *size)


def defined_metrics(
    module: nn.Module, parameters: Sequence[Tensor], objective: Objective, batch: Any
) -> frozenset[str]:
    """Go forward and backward on a batch, and return the metrics that are defined on it.

    A few of its examples are tried first, all of them where these fail. Gradients stay as they are.

    Raises
    ------
    ValuationError
        Saying what went wrong, and what was expected.
    """
    try:
        few = first_few(batch, FEW)
        differentiate(module, parameters, objective, few)
    except Exception:
        few = batch  # Tensors may share a length that does not count examples.
        try:
            differentiate(module, parameters, objective, batch)
        except ValuationError:
            raise
        except Exception as error:
            raise ValuationError(
                f"{objective.call} fails on the first validation batch, {describe(batch)}"
                f"{_outputs(module, batch)}: {type(error).__name__}: {error}"
            ) from error
    return frozenset(m for m in objective.metrics if _is_defined(module, objective, few, m))


def differentiate(
    model: nn.Module, parameters: Sequence[Tensor], objective: Objective, batch: Any
) -> None:
    """Take the gradient of the loss on a batch, and forget it.

    Raises
    ------
    ValuationError
        If the loss is no scalar that depends on a parameter.
    """
    with torch.enable_grad():
        loss = objective.loss(model, batch)
        if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
            raise ValuationError(
                f"{objective.call} gives {describe(loss)}; expected a scalar tensor, "
                "the mean loss over the batch"
            )
        gradients = (
            torch.autograd.grad(loss, list(parameters), allow_unused=True)
            if loss.requires_grad
            else ()
        )
    if all(gradient is None for gradient in gradients):
        raise ValuationError(
            f"the loss of {objective.call} does not depend on a trainable parameter: nothing to "
            "train"
        )


def _outputs(model: nn.Module, batch: Any) -> str:
    """Return words on what the model makes of the inputs, if the batch has any."""
    try:
        with torch.no_grad():
            return f", for which the model gives {describe(model(*batch[:-1]))}"
    except Exception:
        return ""


def _is_defined(model: nn.Module, objective: Objective, batch: Any, metric: str) -> bool:
    try:
        with evaluation_mode(model)():
            (total,) = objective.figures(model, batch, (metric,))
    except Exception as error:
        raise ValuationError(
            f"the {metric} cannot be taken on the first validation batch, {describe(batch)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if total.dim():
        raise ValuationError(
            f"the {metric} is {describe(total)}; expected a number or scalar tensor, "
            "the mean over the batch"
        )
    return metric != "accuracy" or not bool(total.isnan())
