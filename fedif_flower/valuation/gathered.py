"""Outputs and targets of all batches joined on the CPU, for functions of all examples at once.

An AUC, an F1 score or an R² of all examples is no mean of the batches' scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.dtypes import widened
from fedif_flower.tasks.rows import join, num_rows, take_rows
from fedif_flower.tasks.structures import describe, map_tensors
from fedif_flower.valuation.class_mean import ClassMean

OutputsAndTargets = tuple[Any, Any]

# The most that outputs and targets of all examples may take, in each thread that evaluates a model.
# With more, functions are applied to each batch, and their means are taken.
MOST_BYTES = 256 * 2**20


class NotGatheredError(ValuationError):
    """Raised if outputs or targets of several batches cannot be joined."""


def on_cpu(pair: OutputsAndTargets, mean: ClassMean | None) -> OutputsAndTargets:
    """Return outputs and targets on the CPU, without examples whose target is ignored.

    ``mean`` tells which targets are ignored; with ``None``, none are. Half precision becomes
    float32, since a function of many examples may add them up, and NumPy has no bfloat16.

    Raises
    ------
    NotGatheredError
        If outputs and targets are not made of tensors ``[n, ...]`` alone, of one length n.
    """
    if not _has_only_tensors(pair) or num_rows(pair) is None:
        raise NotGatheredError(
            f"outputs and targets of a batch are no tensors of one length: {describe(pair)}"
        )
    outputs, targets = pair
    if mean is not None and isinstance(targets, Tensor):
        answered = mean.has_target(targets)
        if not bool(answered.all()):
            outputs, targets = take_rows((outputs, targets), answered.nonzero().flatten())
    return map_tensors(_on_cpu_widened, outputs), map_tensors(_on_cpu_widened, targets)


def _on_cpu_widened(tensor: Tensor) -> Tensor:
    """Return one tensor on the CPU, detached from gradients, in single precision or more."""
    return widened(tensor.detach().cpu())


def gather(pieces: Sequence[OutputsAndTargets]) -> OutputsAndTargets:
    """Return the outputs and the targets of several batches, as if they were a single batch.

    Raises
    ------
    NotGatheredError
        If there are no batches, or their tensors ``[n, ...]`` differ in more than n.
    """
    if not pieces:
        raise NotGatheredError("there are no outputs")
    try:
        outputs, targets = join(pieces)
    # For example, sequences that each batch pads to its own longest one do not fit together.
    except Exception as error:
        raise NotGatheredError(
            "outputs and targets of several batches cannot be joined: they are "
            f"{describe(pieces[0])} and {describe(pieces[-1])}"
        ) from error
    return outputs, targets


def _has_only_tensors(value: Any) -> bool:
    """Tell whether a value is made of nothing but tensors, in dicts, lists and tuples.

    An object of any other kind may know more than its tensors, which would be lost on the way.
    """
    if value is None or isinstance(value, Tensor):
        return True
    if type(value) is dict:
        return all(map(_has_only_tensors, value.values()))
    if isinstance(value, Mapping):
        return False
    if type(value) in (list, tuple) or hasattr(value, "_fields"):
        return all(map(_has_only_tensors, value))
    return False
