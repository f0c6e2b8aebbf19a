"""A model, its loss and its data tried together, before any client works for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.batches import describe, first_few
from fedif_flower.valuation.objective import Objective

FEW = 2  # Examples: a model that calls ``squeeze`` treats a single one differently.


def defined_metrics(
    model: nn.Module, parameters: Sequence[Tensor], objective: Objective, batch: Any
) -> frozenset[str]:
    """Go forward and backward on a batch, and return the metrics that are defined on it.

    Parameters
    ----------
    model : torch.nn.Module
        Its gradients stay as they are.
    parameters : sequence of Tensor
        What there is to train.
    objective : Objective
        Loss, and perhaps a score.
    batch : Any
        A batch; a few of its examples are tried first, all of them where these fail.

    Raises
    ------
    ValuationError
        Saying what went wrong, and what was expected.
    """
    try:
        few = first_few(batch, FEW)
        differentiate(model, parameters, objective, few)
    except Exception:
        few = batch  # Tensors may share a length that does not count examples.
        _checked_gradient(model, parameters, objective, batch)
    metrics = objective.metrics
    return frozenset(m for m in metrics if _is_defined(model, objective, few, m))


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


def _checked_gradient(
    model: nn.Module, parameters: Sequence[Tensor], objective: Objective, batch: Any
) -> None:
    """Take the gradient on a batch; whatever goes wrong is a ValuationError."""
    try:
        differentiate(model, parameters, objective, batch)
    except ValuationError:
        raise
    except Exception as error:
        raise ValuationError(
            f"{objective.call} fails on the first validation batch, {describe(batch)}"
            f"{_outputs(model, batch)}: {type(error).__name__}: {error}"
        ) from error


def _outputs(model: nn.Module, batch: Any) -> str:
    """Return words on what the model makes of the inputs, if the batch has any."""
    try:
        with torch.no_grad():
            return f", for which the model gives {describe(model(*batch[:-1]))}"
    except Exception:
        return ""


def _is_defined(model: nn.Module, objective: Objective, batch: Any, metric: str) -> bool:
    try:
        with torch.inference_mode():
            (total,) = objective.totals(model, batch, 1, (metric,))
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
