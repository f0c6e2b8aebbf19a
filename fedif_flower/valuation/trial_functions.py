"""A user's function tried on a few examples: whether it is a mean, and looks at pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.tasks.batches import describe, join, num_rows, take_rows
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.objective import as_figure
from fedif_flower.valuation.parts import draw_batches

_MOST = 64  # Examples on which a function is tried.
_ROUNDINGS = 1000  # A sum of so few terms is off by much less.


@contextmanager
def named(failure: str, batch: Any) -> Iterator[None]:
    """Turn whatever a user's functions raise on a batch into one sentence about the failure."""
    try:
        yield
    except (ConfigError, ValuationError):
        raise
    except Exception as error:
        raise ValuationError(
            f"{failure}, {describe(batch)}: {type(error).__name__}: {error}"
        ) from error


class Sized(NamedTuple):
    """What a function gives for some examples, and how much these weigh in a mean."""

    figure: Tensor  # Of floating point.
    size: float


def some_examples(batches: Sequence[Any]) -> Any:
    """Return up to 64 examples from all over the data as one batch.

    Raises
    ------
    Exception
        Any, if batches cannot be divided or joined.
    """
    count = min(max(2, *(num_rows(batch) or 0 for batch in batches)), _MOST)
    drawn = draw_batches(batches, count, torch.Generator().manual_seed(0)) or batches
    joined = join(drawn)
    if num_rows(joined) is None:
        raise ValuationError(f"{describe(joined)} cannot be divided")
    return joined


@contextmanager
def with_noise(model: FlatModel) -> Iterator[None]:
    """Let a model have very different parameters for a while."""
    start = model.params.clone()
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.params.add_(noise.to(start))
        try:
            yield
        finally:
            model.params.copy_(start)


def at_two_models(model: FlatModel, attempt: Callable[[], str]) -> str:
    """Return what an attempt says at the first model, or else at one with much noise.

    A model that begins at zeros answers all examples alike: what is no mean looks like one there.
    """
    why = attempt()
    if why:
        return why
    with with_noise(model):
        try:
            return attempt()
        except Exception:  # Out of a function that refuses what such a model answers.
            return ""


def why_no_mean(function: Callable[[Any], Sized], examples: Any) -> str:
    """Return how a function's mean over two parts differs from its value for the whole.

    Parameters
    ----------
    function : callable
        Given examples, the whole and then a third and two thirds.
    examples : any structure of tensors
        Two or more.

    Returns
    -------
    str
        Empty if they do not differ, or the function gives no number for the whole.
    """
    count = num_rows(examples) or 0
    if count < 2:
        return ""
    third = max(count // 3, 1)
    whole = function(take_rows(examples, torch.arange(count)))
    first = function(take_rows(examples, torch.arange(third)))
    second = function(take_rows(examples, torch.arange(third, count)))
    of_whole = float(whole.figure)
    of_first = float(first.figure)
    of_second = float(second.figure)
    total = first.size + second.size
    if not (math.isfinite(of_whole) and total):
        return ""
    mean = (first.size * of_first + second.size * of_second) / total
    rounding = _ROUNDINGS * torch.finfo(whole.figure.dtype).eps
    if abs(of_whole - mean) <= rounding * max(abs(of_whole), abs(of_first), abs(of_second)):
        return ""
    return (
        f"gives {of_whole:.6g} for {count} examples, but {of_first:.6g} and {of_second:.6g} for "
        f"{third} and {count - third} of them, whose mean is {mean:.6g}: results would depend on "
        "the batch size"
    )


def require_pairs(
    name: str, function: Callable[[Any, Any], Any], outputs: Any, targets: Any
) -> None:
    """Raise ConfigError if a function compares each example's output with every target.

    ``outputs - targets`` does so with shapes ``[n, 1]`` and ``[n]``. Such a function is found out
    by answers that are right: it does not notice when targets change places, but does once both
    have one shape.

    Parameters
    ----------
    name : str
        What the function is called.
    function : callable
        ``(outputs, targets)`` -> number.
    outputs, targets : Tensor ``[n, ...]``
        Nothing is tried where they are no tensors, or their shapes leave no room for the mistake.
    """
    if not _can_be_mistaken(outputs, targets):
        return
    right = targets.to(outputs.dtype).view_as(outputs)
    shuffled = [targets[order] for order in _orders(len(targets))]
    try:
        in_order = _number(function(right, targets))
        in_other_orders = [_number(function(right, others)) for others in shuffled]
        in_one_shape = _number(function(right.view_as(targets), targets))
    except Exception:  # The function may look at the shapes of its arguments.
        return
    largest = max(abs(in_order), abs(in_one_shape))
    tolerance = _ROUNDINGS * torch.finfo(torch.float32).eps * largest
    is_blind = all(abs(in_order - other) <= tolerance for other in in_other_orders)
    if is_blind and abs(in_order - in_one_shape) > tolerance:
        raise ConfigError(
            f"{name} compares each output with the target of every example: outputs are "
            f"{describe(outputs)}, targets {describe(targets)}; allowed: one shape for both, such "
            "as targets[:, None] or outputs[:, 0]"
        )


def _can_be_mistaken(outputs: Any, targets: Any) -> bool:
    """Tell whether outputs and targets are equally many numbers in different dimensions."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return False
    if targets.dim() == 0 or len(targets) < 2 or outputs.dim() == targets.dim():
        return False
    if outputs.numel() != targets.numel() or len(outputs) != len(targets):
        return False
    return not torch.equal(targets, targets[:1].expand_as(targets))


def _orders(count: int) -> list[Tensor]:
    """Return orders ``[count]``: backwards, from the second on, and at random."""
    forwards = torch.arange(count)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return [forwards.flip(0), forwards.roll(1), drawn]


def _number(value: Any) -> float:
    """Return what a user's function gave as a Python number."""
    return float(as_figure(value))
