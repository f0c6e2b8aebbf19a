"""From stored bytes to what a model sees, in two steps: pixels in [0, 1], then normalisation.

They are apart because adversarial examples are made of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def normalize(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return ``(pixels - mean) / std`` per channel; gradients flow through it.

    Parameters
    ----------
    pixels : Tensor
        ``[..., c, h, w]``.
    mean, std : sequence of float
        One of each per channel; std > 0.

    Returns
    -------
    Tensor
        Of the shape, dtype and device of ``pixels``.
    """
    shift = torch.tensor(mean, dtype=pixels.dtype, device=pixels.device)[:, None, None]
    scale = torch.tensor(std, dtype=pixels.dtype, device=pixels.device)[:, None, None]
    return (pixels - shift) / scale  # [..., c, h, w]


@dataclass(frozen=True)
class Normalization:
    """:func:`normalize` with its mean and deviation, to pass where a function is wanted.

    Attributes
    ----------
    mean, std : tuple of float
        One of each per channel; std > 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what would silently broadcast or divide by zero."""
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(
                f"mean = {self.mean}, std = {self.std}; allowed: one of each per channel, std > 0"
            )

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return ``pixels`` [..., c, h, w] normalised."""
        return normalize(pixels, self.mean, self.std)


def unit_range(mean: tuple[float, ...], std: tuple[float, ...]) -> Normalization:
    """Return what brings pixels to [-1, 1], whatever the data set's own moments are."""
    return Normalization((0.5,) * len(mean), (0.5,) * len(std))


# By the name of the run config's choice, from mean and standard deviation of the training split.
NORMALIZATIONS: Mapping[str, Callable[[tuple[float, ...], tuple[float, ...]], Normalization]] = (
    MappingProxyType({"data": Normalization, "unit-range": unit_range})
)
