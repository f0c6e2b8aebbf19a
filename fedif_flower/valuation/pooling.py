"""Max-pooling for inference on the CPU: the same values, without the indices for a gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PairwiseMaxPool2d(nn.MaxPool2d):
    """Max-pooling of 2x2 windows with stride 2 as two element-wise maxima.

    PyTorch's own also records where each maximum lies, which costs more than the maximum. It still
    runs where gradients are on, off the CPU, and for images that are not channels-last.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, input: Tensor) -> Tensor:
        """Map ``[n, c, h, w]`` to ``[n, c, h // 2, w // 2]``."""
        if (
            torch.is_grad_enabled()
            or input.device.type != "cpu"
            or input.dim() != 4
            or min(input.shape[2:]) < 2
            or not input.is_contiguous(memory_format=torch.channels_last)
        ):
            pooled: Tensor = super().forward(input)
            return pooled
        height, width = (side // 2 * 2 for side in input.shape[2:])
        columns = torch.maximum(input[..., 0:width:2], input[..., 1:width:2])
        return torch.maximum(columns[:, :, 0:height:2], columns[:, :, 1:height:2])


def pool_pairwise(model: nn.Module) -> None:
    """Replace every 2x2 max-pooling with stride 2 in ``model``, in place."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if _is_replaceable(child):
                setattr(module, name, PairwiseMaxPool2d())


def _is_replaceable(module: nn.Module) -> bool:
    return (
        type(module) is nn.MaxPool2d
        and module.kernel_size in (2, (2, 2))
        and module.stride in (2, (2, 2))
        and module.padding in (0, (0, 0))
        and module.dilation in (1, (1, 1))
        and not module.return_indices
        and not module.ceil_mode
        and not (module._forward_hooks or module._forward_pre_hooks)
    )
