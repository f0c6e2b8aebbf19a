"""Structures of dicts, lists and tuples that hold tensors: find, change and describe these."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.errors import ValuationError


def as_tensors(value: Any) -> Any:
    """Return a structure of dicts, lists and tuples with tensors in place of NumPy arrays.

    A structure without arrays is returned itself, not rebuilt: a mapping of the user's own class
    may have more than its items.

    Raises
    ------
    ValuationError
        If an array does not hold numbers.
    """
    tensors: list[Tensor] = []

    def to_tensor(values: NDArray[Any]) -> Tensor:
        if values.dtype.kind not in "biufc":
            raise ValuationError(f"a NumPy array has dtype {values.dtype}; allowed: numbers")
        native = np.asarray(values, dtype=values.dtype.newbyteorder("="), order="C")
        if not native.flags.writeable:
            native = native.copy()  # The tensor shares the array's memory, and must be writable.
        tensor = torch.from_numpy(native)
        tensors.append(tensor)
        return tensor

    changed = change_chosen(lambda item: isinstance(item, np.ndarray), to_tensor, value)
    if not tensors:
        return value
    return changed


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a structure of dicts, lists and tuples with ``change`` applied to every tensor."""
    return change_chosen(lambda item: isinstance(item, Tensor), change, value)


def change_chosen(chosen: Callable[[Any], bool], change: Callable[[Any], Any], value: Any) -> Any:
    """Return a structure with ``change`` applied to every part for which ``chosen`` is true."""
    if chosen(value):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: change_chosen(chosen, change, item) for key, item in value.items()}
        return rebuilt_mapping(value, items)
    if isinstance(value, list | tuple):
        return rebuilt(value, [change_chosen(chosen, change, item) for item in value])
    return value


def rebuilt_mapping(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    """Return a mapping of the same class as ``mapping``, with other items.

    Batches and outputs of the transformers library are read by attributes, too, as in
    ``outputs.logits``, which a plain dict does not have. If the items are the old ones, ``mapping``
    itself is returned. If one made of ``items`` alone would differ in more than them, as one with
    settings of its own, ``items`` are returned.
    """
    kind: Any = type(mapping)
    if kind is dict:
        return items
    try:
        if _holds(mapping, items):
            return mapping
        copied: Mapping[Any, Any] = kind(items)
        is_alike = _holds(copied, items) and _attributes(copied) == _attributes(mapping)
    except Exception:  # The user's class may be made of other arguments, and raise anything.
        return items
    return copied if is_alike else items


def _holds(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> bool:
    """Tell whether a mapping has exactly these items, each the very same object."""
    if list(mapping.keys()) != list(items):
        return False
    return all(mapping[key] is item for key, item in items.items())


def _attributes(mapping: Mapping[Any, Any]) -> dict[str, int]:
    """Return the ids of a mapping's attributes by name, without those that show its items."""
    attributes = {}
    for name, value in getattr(mapping, "__dict__", {}).items():
        is_storage = name == "data" and isinstance(mapping, UserDict)
        if name not in mapping and not is_storage:
            attributes[name] = id(value)
    return attributes


def rebuilt(sequence: Any, items: list[Any]) -> Any:
    """Return a list or tuple of the same type as ``sequence``, with other items."""
    is_named_tuple = hasattr(sequence, "_fields")
    if is_named_tuple:
        return type(sequence)(*items)
    return type(sequence)(items)


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors of a structure of dicts, lists and tuples."""
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, Tensor)]


def leaves_of(value: Any) -> list[Any]:
    """Return all parts of a structure that are no dicts, lists or tuples: tensors, strings, ..."""
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return [value]
    leaves: list[Any] = []
    for part in parts:
        leaves += leaves_of(part)
    return leaves


def to_device(value: Any, device: torch.device) -> Any:
    """Move a structure's tensors to a device; an object with a method ``to`` moves itself."""
    has_to = callable(getattr(value, "to", None))
    if has_to:
        return value.to(device)
    return map_tensors(lambda tensor: tensor.to(device), value)


def describe(value: Any) -> str:
    """Return types and shapes for an error message: ``(float32 [8, 3], int64 [8])``."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"NumPy array {value.dtype} {list(value.shape)}"
    if isinstance(value, Mapping):
        items = [f"{key!r}: {describe(item)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple) and len(value) <= 8:
        return f"{type(value).__name__} ({', '.join(map(describe, value))})"
    return type(value).__name__
