"""Floating-point types: half precision, and data of another type than the model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fedif_flower.errors import DataError
from fedif_flower.tasks.structures import tensors_of


def is_half(numbers: Tensor) -> bool:
    """Tell whether numbers are of less than single precision, as float16 and bfloat16 are."""
    return numbers.is_floating_point() and numbers.itemsize < 4


def widened(numbers: Tensor) -> Tensor:
    """Return numbers of half precision in single precision, and all others as they are."""
    return numbers.float() if is_half(numbers) else numbers


def dtype_misfit(model: nn.Module, batch: Any) -> str:
    """Return that a batch's floats are of no type that the model has, in words; empty: they are.

    Torch's own words do not name the two types.
    """
    of_model = _float_names(model.parameters())
    of_data = _float_names(tensors_of(batch))
    others = of_data - of_model
    if not of_model or not others:
        return ""
    given = " and ".join(sorted(others))
    allowed = " or ".join(sorted(of_model))
    return f"the data are {given}, the model is {allowed}: convert the data to {allowed}"


def _float_names(tensors: Iterable[Tensor]) -> set[str]:
    """Return the names of the floating-point types among tensors."""
    types = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    return {str(dtype).removeprefix("torch.") for dtype in types}


@contextmanager
def naming_dtypes(model: nn.Module, batch: Any) -> Iterator[None]:
    """Let an error of torch's name the floating-point types of batch and model if they differ.

    Raises
    ------
    DataError
        In place of a RuntimeError, where they do.
    """
    try:
        yield
    except RuntimeError as error:
        misfit = dtype_misfit(model, batch)
        if not misfit:
            raise
        raise DataError(f"{type(error).__name__}: {error}; {misfit}") from error
