"""The machine that a run was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import torch

MPS = "MPS"  # What a GPU of Apple is called, which has no name of its own.


def describe_machine(device: str) -> dict[str, Any]:
    """Return versions and hardware, without which no figure of speed says anything."""
    gpu = None
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name(0)
    elif torch.backends.mps.is_available():
        gpu = MPS
    return {
        "python": platform.python_version(),
        "flwr": version("flwr"),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "device": device,
    }
