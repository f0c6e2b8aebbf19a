"""The gradient of the server's held-out loss, as it travels beside the model."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.errors import FedIFError
from fedif_flower.messages.models import tensor_arrays

GRADIENT_RECORD = GRADIENT_KEY = "validation-gradient"


def gradient_record(gradient: Tensor) -> ArrayRecord:
    """Return a gradient ``[d]`` as a record beside the model."""
    return tensor_arrays({GRADIENT_KEY: gradient.detach()})


def read_gradient(content: RecordDict, at_most: int) -> NDArray[np.floating] | None:
    """Return the gradient ``[d]`` that came with a model; ``None``: there is none.

    Parameters
    ----------
    content : RecordDict
        A message's.
    at_most : int
        Numbers in the model.

    Raises
    ------
    FedIFError
        If it is no vector of finite numbers, or longer than the model.
    """
    record = content.get(GRADIENT_RECORD)
    if not isinstance(record, ArrayRecord):
        return None
    if list(record) != [GRADIENT_KEY]:
        raise FedIFError(f"the published gradient has arrays {list(record)!r:.100}")
    try:
        vector = record[GRADIENT_KEY].numpy()
    except Exception as error:  # whatever NumPy makes of another's bytes
        raise FedIFError(f"the published gradient is unreadable: {error!r:.100}") from error
    if vector.ndim != 1 or not 0 < len(vector) <= at_most or vector.dtype.kind != "f":
        raise FedIFError(
            f"the published gradient is {vector.dtype} {list(vector.shape)}; expected a vector of "
            f"at most {at_most} numbers"
        )
    if not np.isfinite(vector).all():
        raise FedIFError("the published gradient is not finite")
    return vector
