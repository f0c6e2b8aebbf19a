"""Try a user's function on a few examples: whether it is a mean, and pairs outputs and targets."""

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
from fedif_flower.valuation.subsets import draw_batches

_MOST_EXAMPLES = 64  # The most examples on which a function is tried.
_ROUNDINGS = 1000  # Tolerance in roundings (eps): a sum over so few examples is off by much less.
_TOLERANCE = 0.01  # Relative: even the faster, coarser arithmetic of a GPU is off by less.


@contextmanager
def named(
    failure: str, batch: Any, model: nn.Module | None = None, *, is_pair: bool = False
) -> Iterator[None]:
    """Turn whatever a user's functions raise on a batch into one ValuationError about ``failure``.

    With a ``model``, the error also says if the batch has another floating-point type than the
    model; with ``is_pair``, for a batch ``(inputs, targets)``, also if several inputs were passed
    as one tuple. A ConfigError or ValuationError passes through.
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
    """Return how to pass several inputs that came as one tuple; empty if that is not the fault."""
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
    """Tell whether a model can be called with these arguments."""
    try:
        with torch.no_grad():
            model(*arguments)
    except Exception:  # Whatever a user's model raises.
        return False
    return True


class Sized(NamedTuple):
    """What a function gives for some examples, and the weight of these in a mean."""

    figure: Tensor  # A floating-point scalar.
    size: float


def some_examples(batches: Sequence[Any]) -> Any:
    """Return some examples from all over the data as one batch.

    There are as many as in the largest batch, but at least 2 (or all there are), and at most 64.

    Raises
    ------
    Exception
        Of any type, if batches cannot be divided or joined.
    """
    largest = max(count_rows(batch) for batch in batches)
    count = min(max(largest, 2), _MOST_EXAMPLES)
    drawn = draw_batches(batches, count, torch.Generator().manual_seed(0))
    joined = join(drawn if drawn else batches)
    if num_rows(joined) is None:
        raise ValuationError(f"{describe(joined)} cannot be divided")
    return joined


@contextmanager
def with_noise(model: FlatModel) -> Iterator[None]:
    """Give a model very different parameters within the context."""
    start = model.params.clone()
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.load(start + noise.to(start), {})
        try:
            yield
        finally:
            model.load(start, {})


def at_two_models(model: FlatModel, attempt: Callable[[], str]) -> str:
    """Return what ``attempt`` says at the given model; if that is empty, at one with much noise.

    A model whose parameters are zeros gives the same output for all examples. There, a function
    that is no mean may look like one.
    """
    why = attempt()
    if why:
        return why
    with with_noise(model):
        try:
            return attempt()
        except Exception:  # The function may refuse the outputs of such a model.
            return ""


class Divided(NamedTuple):
    """What a function gives for some examples, for the first third of them, and for the rest."""

    whole: Sized
    first: Sized
    second: Sized
    counts: tuple[int, int]  # How many examples the two parts have.

    @property
    def mean(self) -> float:
        """The mean of the parts' figures, weighted by their sizes; NaN if both sizes are 0."""
        # A part in which no example counts may give NaN.
        parts = [part for part in (self.first, self.second) if part.size]
        if not parts:
            return math.nan
        weighted = sum(part.size * float(part.figure) for part in parts)
        return weighted / sum(part.size for part in parts)

    @property
    def is_mean(self) -> bool:
        """Whether the whole's figure is the mean of the parts'; also true if that is not known.

        It is not known if no example counts, or the whole's figure is not finite.
        """
        nothing_counts = not (self.first.size + self.second.size)
        if nothing_counts or not math.isfinite(float(self.whole.figure)):
            return True
        return self._is(self.mean)

    @property
    def is_far(self) -> bool:
        """Whether the whole's figure differs from the mean by far more than rounding."""
        figures = [abs(float(sized.figure)) for sized in self[:3] if sized.size]
        rounding = _ROUNDINGS * torch.finfo(self.whole.figure.dtype).eps
        tolerance = max(rounding, _TOLERANCE) * max(figures, default=0.0)
        return abs(float(self.whole.figure) - self.mean) > tolerance

    @property
    def is_sum(self) -> bool:
        """Whether the whole's figure is not the mean of the parts', but their sum."""
        return not self.is_mean and self._is(float(self.first.figure) + float(self.second.figure))

    def _is(self, expected: float) -> bool:
        """Tell whether the whole's figure is the expected one, as far as rounding allows."""
        figures = [abs(float(sized.figure)) for sized in self[:3]]
        rounding = _ROUNDINGS * torch.finfo(self.whole.figure.dtype).eps
        return abs(float(self.whole.figure) - expected) <= rounding * max(figures)

    def __str__(self) -> str:
        """Return the figures of the whole and the parts in words."""
        num_first, num_second = self.counts
        return (
            f"gives {float(self.whole.figure):.6g} for {num_first + num_second} examples, but "
            f"{float(self.first.figure):.6g} and {float(self.second.figure):.6g} for {num_first} "
            f"and {num_second} of them, whose mean is {self.mean:.6g}: results would depend on the "
            "batch size"
        )


def divide(function: Callable[[Any], Sized], examples: Any) -> Divided | None:
    """Return what a function gives for examples, and for two parts of them.

    ``examples`` are a batch of any structure. ``None``: they are fewer than two, or cannot be
    divided.
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
    """Return in words how a function's mean over two parts differs from its value for the whole.

    Empty if they do not differ, or if that is not known; see :func:`divide`.
    """
    divided = divide(function, examples)
    if divided is None or divided.is_mean:
        return ""
    return str(divided)


def require_pairs(
    name: str, function: Callable[[Any, Any], Any], outputs: Any, targets: Any
) -> None:
    """Raise ConfigError if a function compares each example's output with every target.

    ``outputs - targets`` does so with shapes ``[n, 1]`` and ``[n]``. Such a function shows itself
    when it is given the right answers as outputs: its value stays the same if the targets change
    places, but is another if outputs and targets have one shape.

    Parameters
    ----------
    name : str
        What error messages call the function.
    function : callable
        ``(outputs, targets)`` -> number.
    outputs, targets : Tensor ``[n, ...]``
        Nothing is tried if they are no tensors, or if this mistake is not possible with their
        shapes.
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
    """Tell whether outputs and targets are as many numbers each, in different dimensions.

    If all targets are equal, a change of their places would not show anything.
    """
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return False
    if targets.dim() == 0 or len(targets) < 2 or outputs.dim() == targets.dim():
        return False
    if outputs.numel() != targets.numel() or len(outputs) != len(targets):
        return False
    return not torch.equal(targets, targets[:1].expand_as(targets))


def _orders(count: int) -> list[Tensor]:
    """Return three orders ``[count]``: backwards, shifted by one, and at random."""
    forwards = torch.arange(count)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return [forwards.flip(0), forwards.roll(1), drawn]


def _number(value: Any) -> float:
    """Return what a user's function returned as a Python number."""
    return float(as_figure(value))
