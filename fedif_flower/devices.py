"""The device that a computation runs on, and its number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedif_flower.errors import ConfigError


def select_device(device: str | torch.device) -> torch.device:
    """Return the torch device that a ``device`` setting names.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"`` (CUDA, then MPS, then CPU), ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or ``"mps"``.

    Raises
    ------
    ConfigError
        If there is no such device, or this process has none. No other device is used silently.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device = {device!r}; allowed: auto, cpu, cuda, cuda:N, mps, or another of torch's"
        ) from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {str(device)!r}: this process sees {torch.cuda.device_count()} CUDA devices"
        )
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device = 'mps': not available here")
    return chosen


def fix_threads(count: int) -> None:
    """Give the calling thread ``count`` >= 1 torch threads, whatever other threads set later."""
    # A thread's first call takes over the process's number of threads. It is made here, since later
    # it would replace the number set below.
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` >= 1 threads within the context, and as many as before afterwards.

    It makes results reproducible: the last bits of sums depend on the number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
