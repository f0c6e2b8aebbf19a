"""Which values a checkpoint can hold: those that are read back without running code."""

from __future__ import annotations

from collections import OrderedDict
from io import BytesIO
from types import NoneType

import torch
from torch import Tensor
from torch.nn import Parameter

# Values have to be of exactly these types: isinstance() calls a numpy.float64 a float, but
# torch.load(weights_only=True) does not read one back.
_PLAIN = (bool, int, float, str, NoneType, Tensor, Parameter)


def unreadable_in(value: object) -> str | None:
    """Return which part of a value cannot be read back, as ``['mean'], a numpy.float64``.

    ``None``: a checkpoint can hold all of the value.
    """
    kind = type(value)
    if kind in _PLAIN:
        return None
    if isinstance(value, dict) and kind in (dict, OrderedDict):
        return _unreadable_in_dict(value)
    if isinstance(value, list | tuple) and kind in (list, tuple):
        for place, element in enumerate(value):
            unreadable = unreadable_in(element)
            if unreadable is not None:
                return f"[{place}]{unreadable}"
        return None
    if _is_read_back(value):
        return None
    return f", a {kind.__module__}.{kind.__qualname__}"


def _unreadable_in_dict(value: dict[object, object]) -> str | None:
    """Return what :func:`unreadable_in` returns, for a dict's keys and values."""
    for key, element in value.items():
        unreadable_key = unreadable_in(key)
        if unreadable_key is not None:
            return f"'s key {key!r}{unreadable_key}"
        unreadable = unreadable_in(element)
        if unreadable is not None:
            return f"[{key!r}]{unreadable}"
    return None


def _is_read_back(value: object) -> bool:
    """Whether a value of another type can be read back: it is written and read to find out."""
    buffer = BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:  # A user's object may raise anything while it is written.
        return False
    return True
