"""Conversion of a torch ``state_dict`` to Flower's ``ArrayRecord`` and back, with few copies."""

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
    """Return a model's ``state_dict`` as a record; it replaces ``ArrayRecord(state_dict)``.

    Arrays in bfloat16 travel as float32, because NumPy and so Flower's records have no bfloat16.
    Every number of bfloat16 is one of float32, so nothing is lost. ``load_state_dict`` turns them
    back.
    """
    return tensor_arrays(model.state_dict())


def bfloat16_arrays(model: nn.Module) -> dict[str, Tensor]:
    """Return float32 copies of a model's bfloat16 arrays, by name."""
    return {
        name: value.detach().to("cpu", torch.float32, copy=True)
        for name, value in model.state_dict().items()
        if value.dtype is torch.bfloat16
    }


def changed_arrays(
    model: nn.Module, received: Mapping[str, Array], loaded: Mapping[str, Tensor]
) -> ArrayRecord:
    """Return the model that a client sends, without the rounding error of loading it.

    The global model has more digits than bfloat16, so loading it rounds its values. Sent back as
    they are, the arrays would bring that rounding as a change of the client's own: a client that
    did nothing would be scored for it. So each array in bfloat16 is sent as the value received plus
    the change in training.

    Parameters
    ----------
    model : torch.nn.Module
        The client's model, trained.
    received : mapping of str to Array
        The server's model.
    loaded : mapping of str to Tensor
        What :func:`bfloat16_arrays` returned right after ``received`` was loaded.
    """
    arrays = dict(model.state_dict())
    for name, before in loaded.items():
        sent = torch.from_numpy(received[name].numpy())
        after = arrays[name].detach().to(before)
        changed = sent + (after - before)
        arrays[name] = changed.where(after != before, sent)  # Infinite less infinite is NaN.
        if is_variance(name):  # One that fell to 0 may come out below 0 by the rounding error.
            arrays[name] = arrays[name].clamp(min=0.0)
    return tensor_arrays(arrays)


def tensor_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors as a record; tensors in bfloat16 become float32."""
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
        If the record and the model do not have the same arrays: the client's task is not the
        server's.
    """
    received = {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
    # Parameters that the model's state_dict leaves out, such as a frozen base, are never sent.
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
    """Return words that say which arrays differ between record and model, and perhaps why."""
    wrong = []
    if unknown:
        wrong.append(f"{enumerated(unknown)} were sent, which it does not have")
    if unsent:
        wrong.append(f"{enumerated(unsent)} of it were not sent")
    wrapper = wrapper_of(matched(unknown, unsent))
    if wrapper is not None:
        wrong.append(prefix_explained(wrapper))
    return "; ".join(wrong)
