"""A torch model's ``state_dict`` <-> Flower's ``ArrayRecord``, without the copies Flower makes."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from fedif_flower.messages.arrays import is_variance, pack_array
from fedif_flower.messages.names import matched, prefix_explained, wrapper_of
from fedif_flower.words import enumerated


def model_arrays(model: nn.Module) -> ArrayRecord:
    """Return a model's ``state_dict`` as a record, in place of ``ArrayRecord(state_dict)``.

    Arrays in bfloat16, which NumPy and so Flower's records do not know, travel as float32: it has
    every number of bfloat16. ``load_state_dict`` turns them back.
    """
    return tensor_arrays(model.state_dict())


def bfloat16_arrays(model: nn.Module) -> dict[str, Tensor]:
    """Return copies in float32 of the arrays that a model has in bfloat16, by name."""
    return {
        name: value.detach().to("cpu", torch.float32, copy=True)
        for name, value in model.state_dict().items()
        if value.dtype is torch.bfloat16
    }


def changed_arrays(
    model: nn.Module, received: Mapping[str, Array], loaded: Mapping[str, Tensor]
) -> ArrayRecord:
    """Return what a client sends: the model, with each array in bfloat16 as received and changed.

    The global model has more digits than bfloat16. Sent back as it is, an array would bring what
    loading it has rounded away as a change of the client's own, and a client that did nothing would
    be scored for that.

    Parameters
    ----------
    model : torch.nn.Module
        The client's, trained.
    received : mapping of str to Array
        The server's model.
    loaded : mapping of str to Tensor
        What :func:`bfloat16_arrays` returned when that had just been loaded.
    """
    arrays = dict(model.state_dict())
    for name, before in loaded.items():
        sent = torch.from_numpy(received[name].numpy())
        after = arrays[name].detach().to(before)
        changed = sent + (after - before)
        arrays[name] = changed.where(after != before, sent)  # Infinite less infinite is NaN.
        if is_variance(name):  # One that has fallen to 0 is not below it by that rounding.
            arrays[name] = arrays[name].clamp(min=0.0)
    return tensor_arrays(arrays)


def tensor_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors as a record, bfloat16 as float32."""
    return ArrayRecord({name: pack_array(_numpy(value)) for name, value in tensors.items()})


def _numpy(tensor: Tensor) -> NDArray[np.generic]:
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    values: NDArray[np.generic] = tensor.detach().cpu().numpy()
    return values


def load_arrays(model: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Copy a record into a model's parameters and buffers, wherever the model lies.

    Raises
    ------
    ValueError
        If the record and the model do not have the same arrays: the task here is not the server's.
    """
    received = {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
    # What a model's state_dict leaves out, such as a frozen base, does not travel.
    expected = model.state_dict().keys()
    unknown = received.keys() - expected
    unsent = expected - received.keys()
    if unknown or unsent:
        raise ValueError(
            f"this client's model is not the server's: {_differing_arrays(unknown, unsent)}"
        )
    try:
        model.load_state_dict(received, strict=False)
    except RuntimeError as error:
        raise ValueError(f"this client's model is not the server's: {error}") from error


def _differing_arrays(unknown: Set[str], unsent: Set[str]) -> str:
    """Return in words which arrays were sent or are in the model alone, and what may be why."""
    wrong = []
    if unknown:
        wrong.append(f"{enumerated(unknown)} were sent, which it does not have")
    if unsent:
        wrong.append(f"{enumerated(unsent)} of it were not sent")
    wrapper = wrapper_of(matched(unknown, unsent))
    if wrapper is not None:
        wrong.append(prefix_explained(wrapper))
    return "; ".join(wrong)
