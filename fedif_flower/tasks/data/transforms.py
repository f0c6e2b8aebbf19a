"""From stored bytes to what a model sees, in two steps: pixels in [0, 1], then normalisation.

They are apart because adversarial examples are made of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_pixels(images: NDArray[np.uint8], max_value: int) -> Tensor:
    """Return pixels in [0, 1] as a new float32 tensor.

    Parameters
    ----------
    images : NDArray[np.uint8]
        ``[n, c, h, w]``, each value in [0, max_value].
    max_value : int
        The value that stands for pixel 1.0, in [1, 255].

    Returns
    -------
    Tensor
        ``[n, c, h, w]``, float32 on the CPU.
    """
    return torch.from_numpy(np.array(images, dtype=np.float32)).div_(max_value)


@dataclass(frozen=True)
class Normalization:
    """``(pixels - mean) / std`` per channel; gradients flow through it.

    Attributes
    ----------
    mean, std : tuple of float
        One of each per channel; std > 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return ``pixels`` [..., c, h, w] normalised, of their dtype, where they lie."""
        shift, scale = (pixels.new_tensor(x)[:, None, None] for x in (self.mean, self.std))
        return (pixels - shift) / scale


def unit_range(mean: tuple[float, ...], std: tuple[float, ...]) -> Normalization:
    """Return what brings pixels to [-1, 1], whatever the data set's own moments are."""
    return Normalization((0.5,) * len(mean), (0.5,) * len(std))


# By the name of the run config's choice, from mean and standard deviation of the training split.
NORMALIZATIONS: Mapping[str, Callable[[tuple[float, ...], tuple[float, ...]], Normalization]] = (
    MappingProxyType({"data": Normalization, "unit-range": unit_range})
)
