"""The machine that a run was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import torch

MPS = "MPS"  # PyTorch knows no name of an Apple GPU; this stands for it.


def describe_machine(device: str) -> dict[str, Any]:
    """Return versions and hardware, without which figures of speed mean nothing."""
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
