"""Floating-point types: half precision, and errors when data and model have different types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fedif_flower.errors import DataError
from fedif_flower.tasks.structures import tensors_of


def is_half(numbers: Tensor) -> bool:
    """Return whether numbers are floats of less than 32 bits, such as float16 and bfloat16."""
    return numbers.is_floating_point() and numbers.itemsize < 4


def widened(numbers: Tensor) -> Tensor:
    """Return half-precision numbers as float32, and all others as they are."""
    return numbers.float() if is_half(numbers) else numbers


def dtype_misfit(model: nn.Module, batch: Any) -> str:
    """Return words that a batch has a float type that the model lacks; empty if it has none.

    Torch's own error does not name both types.
    """
    model_types = _float_names(model.parameters())
    data_types = _float_names(tensors_of(batch))
    unlike = data_types - model_types
    if not model_types or not unlike:
        return ""
    present = " and ".join(sorted(unlike))
    allowed = " or ".join(sorted(model_types))
    return f"the data are {present}, the model is {allowed}: convert the data to {allowed}"


def _float_names(tensors: Iterable[Tensor]) -> set[str]:
    """Return the names of the floating-point types among tensors."""
    types = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    return {str(dtype).removeprefix("torch.") for dtype in types}


@contextmanager
def naming_dtypes(model: nn.Module, batch: Any) -> Iterator[None]:
    """Add the float types of batch and model to an error of torch, if the two differ.

    Raises
    ------
    DataError
        In place of a RuntimeError raised inside, if the types differ.
    """
    try:
        yield
    except RuntimeError as error:
        misfit = dtype_misfit(model, batch)
        if not misfit:
            raise
        raise DataError(f"{type(error).__name__}: {error}; {misfit}") from error
