"""Whether a batch ``(inputs, targets)`` is one, or a single example that was taken for one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.modules import module_mode
from fedif_flower.tasks.structures import describe, tensors_of


def has_examples(targets: Any) -> bool:
    """Tell whether targets have a first dimension, or a length, that counts examples."""
    tensors = tensors_of(targets)
    if tensors:
        return any(tensor.dim() for tensor in tensors)
    return hasattr(targets, "__len__")


def is_of_two_lengths(batch: Any) -> bool:
    """Tell whether a batch is a vector ``[f]`` of floats, and a tensor of another length."""
    if len(batch) != 2:
        return False
    inputs, targets = batch
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return False
    is_vector = inputs.dim() == 1 and inputs.is_floating_point()
    return is_vector and targets.dim() > 0 and len(targets) != len(inputs)


def takes_two(model: nn.Module, inputs: Tensor) -> bool:
    """Tell whether a model's output for ``[2, f]`` is two of its output for ``[f]``.

    It is not if each of the f numbers has an output of its own.
    """
    try:
        with module_mode(model, training=False), torch.no_grad():
            output = model(inputs)
            outputs = model(torch.stack((inputs, inputs)))
    except Exception:  # Out of the user's own model, which takes one of the two alone.
        return False
    if not isinstance(output, Tensor) or not isinstance(outputs, Tensor):
        return False
    is_by_number = output.dim() > 0 and len(output) == len(inputs)
    return not is_by_number and outputs.shape == (2, *output.shape)


def single_example_error(batch: Any, why: str) -> ValuationError:
    """Return the error that a batch is an example."""
    return ValuationError(
        f"a batch is {describe(batch)}, which is a single example: {why}; allowed: batches, such "
        "as a DataLoader with a batch_size makes of a list of examples"
    )
