"""A user's function tried on a few examples: whether it is a mean, and looks at pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.tasks.dtypes import dtype_misfit
from fedif_flower.tasks.rows import count_rows, join, num_rows, take_rows
from fedif_flower.tasks.structures import describe
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.objective import as_figure
from fedif_flower.valuation.parts import draw_batches

_MOST = 64  # Examples on which a function is tried.
_ROUNDINGS = 1000  # A sum of so few terms is off by much less.
_FAR = 0.01  # What a GPU's faster arithmetic rounds is less, as a share of the whole.


@contextmanager
def named(
    failure: str, batch: Any, model: nn.Module | None = None, *, is_pair: bool = False
) -> Iterator[None]:
    """Turn whatever a user's functions raise on a batch into one sentence about the failure.

    With a ``model`` it says, too, where the batch is of another floating-point type; and of a pair
    ``(inputs, targets)``, where it has several inputs as one.
    """
    try:
        yield
    except (ConfigError, ValuationError):
        raise
    except Exception as error:
        words = f"{failure}, {describe(batch)}: {type(error).__name__}: {error}"
        misfit = ""
        if model is not None:
            misfit = dtype_misfit(model, batch)
        if model is not None and is_pair and not misfit:
            misfit = _several_inputs(model, batch)
        if misfit:
            words += f"; {misfit}"
        raise ValuationError(words) from error


def _several_inputs(model: nn.Module, batch: Any) -> str:
    """Return how to pass inputs that came as one tuple to a model of several; empty: it is not."""
    is_of_two = isinstance(batch, tuple | list) and len(batch) == 2
    if not is_of_two or not isinstance(batch[0], tuple | list):
        return ""
    if _takes(model, batch[0]) or not _takes(model, *batch[0]):
        return ""
    names = ", ".join(chr(ord("a") + place) for place in range(len(batch[0])))
    return (
        f"the model takes {len(batch[0])} inputs: pass ({names}, targets) in the place of "
        f"({names}), targets"
    )


def _takes(model: nn.Module, *arguments: Any) -> bool:
    """Tell whether a model answers when it is called with these."""
    try:
        with torch.no_grad():
            model(*arguments)
    except Exception:  # Whatever a user's model raises.
        return False
    return True


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
    largest = max(count_rows(batch) for batch in batches)
    count = min(max(largest, 2), _MOST)
    drawn = draw_batches(batches, count, torch.Generator().manual_seed(0))
    joined = join(drawn if drawn else batches)
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


class Divided(NamedTuple):
    """What a function gives for some examples, and for a third and two thirds of them."""

    whole: Sized
    first: Sized
    second: Sized
    counts: tuple[int, int]  # Of examples in the parts.

    @property
    def mean(self) -> float:
        """The mean of what it gives for the parts, by their sizes; NaN where these are 0."""
        # A part in which nothing counts may give NaN.
        parts = [part for part in (self.first, self.second) if part.size]
        if not parts:
            return math.nan
        weighted = sum(part.size * float(part.figure) for part in parts)
        return weighted / sum(part.size for part in parts)

    @property
    def is_mean(self) -> bool:
        """Whether the whole's figure is the mean; no number for the whole says nothing."""
        nothing_counts = not (self.first.size + self.second.size)
        if nothing_counts or not math.isfinite(float(self.whole.figure)):
            return True
        return self._is(self.mean)

    @property
    def is_far(self) -> bool:
        """Whether the whole's figure is another than the mean by far more than rounding."""
        figures = [abs(float(sized.figure)) for sized in self[:3] if sized.size]
        rounding = _ROUNDINGS * torch.finfo(self.whole.figure.dtype).eps
        tolerance = max(rounding, _FAR) * max(figures, default=0.0)
        return abs(float(self.whole.figure) - self.mean) > tolerance

    @property
    def is_sum(self) -> bool:
        """Whether the whole's figure is the sum of the parts', and not their mean."""
        return not self.is_mean and self._is(float(self.first.figure) + float(self.second.figure))

    def _is(self, expected: float) -> bool:
        """Tell whether the whole's figure is what is expected, as far as rounding allows."""
        figures = [abs(float(sized.figure)) for sized in self[:3]]
        rounding = _ROUNDINGS * torch.finfo(self.whole.figure.dtype).eps
        return abs(float(self.whole.figure) - expected) <= rounding * max(figures)

    def __str__(self) -> str:
        """Say what it gives."""
        num_first, num_second = self.counts
        return (
            f"gives {float(self.whole.figure):.6g} for {num_first + num_second} examples, but "
            f"{float(self.first.figure):.6g} and {float(self.second.figure):.6g} for {num_first} "
            f"and {num_second} of them, whose mean is {self.mean:.6g}: results would depend on the "
            "batch size"
        )


def divide(function: Callable[[Any], Sized], examples: Any) -> Divided | None:
    """Return what a function gives for the whole, and then for both parts.

    ``None`` for fewer than two examples (any structure of tensors).
    """
    count = count_rows(examples)
    if count < 2:
        return None
    third = max(count // 3, 1)
    whole = function(take_rows(examples, torch.arange(count)))
    first = function(take_rows(examples, torch.arange(third)))
    second = function(take_rows(examples, torch.arange(third, count)))
    return Divided(whole, first, second, (third, count - third))


def why_no_mean(function: Callable[[Any], Sized], examples: Any) -> str:
    """Return how a function's mean over two parts differs from its value for the whole.

    Empty if they do not differ, or nothing can be told; see :func:`divide`.
    """
    divided = divide(function, examples)
    if divided is None or divided.is_mean:
        return ""
    return str(divided)


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
