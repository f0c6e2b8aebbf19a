"""Checks that a batch ``(inputs, targets)`` is a batch, and not a single example."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.modules import module_mode
from fedif_flower.tasks.structures import describe, tensors_of


def has_examples(targets: Any) -> bool:
    """Tell whether targets have a first dimension, or a length, which counts examples."""
    tensors = tensors_of(targets)
    if tensors:
        return any(tensor.dim() for tensor in tensors)
    return hasattr(targets, "__len__")


def is_of_two_lengths(batch: Any) -> bool:
    """Tell whether a batch is a vector ``[f]`` of floats and targets of another length than f."""
    if len(batch) != 2:
        return False
    inputs, targets = batch
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return False
    is_vector = inputs.dim() == 1 and inputs.is_floating_point()
    return is_vector and targets.dim() > 0 and len(targets) != len(inputs)


def takes_two(model: nn.Module, inputs: Tensor) -> bool:
    """Tell whether a model takes inputs ``[f]`` for one example.

    It does if its output for two of them, ``[2, f]``, has the shape of two outputs for ``[f]``. It
    does not if it has an output for each of the f numbers: then these are the examples.
    """
    try:
        with module_mode(model, training=False), torch.no_grad():
            output = model(inputs)
            outputs = model(torch.stack((inputs, inputs)))
    except Exception:  # The user's model may raise anything: it takes only one of the two shapes.
        return False
    if not isinstance(output, Tensor) or not isinstance(outputs, Tensor):
        return False
    is_by_number = output.dim() > 0 and len(output) == len(inputs)
    return not is_by_number and outputs.shape == (2, *output.shape)


def single_example_error(batch: Any, why: str) -> ValuationError:
    """Return the error for a batch that is a single example; ``why`` says what shows it."""
    return ValuationError(
        f"a batch is {describe(batch)}, which is a single example: {why}; allowed: batches, such "
        "as a DataLoader with a batch_size makes of a list of examples"
    )
