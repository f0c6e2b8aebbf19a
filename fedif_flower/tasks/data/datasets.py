"""Data sets by name, as read-only arrays that all processes of a machine share.

Stored bytes become a model's inputs in two steps: first pixels in [0, 1], then their normalisation.
The steps are apart because attacks that make adversarial examples change pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.storage import cache_root
from fedif_flower.tasks.data.cache import Dataset, Source, open_prepared
from fedif_flower.tasks.data.sources.digits import Digits
from fedif_flower.tasks.data.sources.image_folder import ImageFolder
from fedif_flower.tasks.data.sources.vision import CIFAR10, FashionMNIST

# One line per data set: its name and the class that gets and reads its files.
DATASETS: Mapping[str, Callable[[str, Path], Source]] = MappingProxyType(
    {
        "digits": Digits,
        "fashion-mnist": FashionMNIST,
        "cifar10": CIFAR10,
        "image-folder": ImageFolder,
    }
)


def load_dataset(name: str, data_dir: str | Path = "", *, require_test: bool = True) -> Dataset:
    """Open a data set; the first time on a machine it is prepared (and downloaded, if need be).

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.
    data_dir : str or Path
        The folder of the data set's files, which may be read-only. It is unused for ``digits`` and
        required for ``image-folder``. For other data sets it is the folder that torchvision reads
        from, or downloads to if files are missing. ``""``: downloads go to the cache, in
        ``$XDG_CACHE_HOME`` or ``~/.cache``.
    require_test : bool
        Whether a data set without test images is an error; clients need no test images.

    Raises
    ------
    ConfigError
        If the name is unknown, or ``data_dir`` is needed and empty.
    DataError
        If the data are missing, unreadable or inconsistent, or the cache cannot be written.
    """
    if name not in DATASETS:
        raise ConfigError(f"dataset = {name!r}; allowed: {', '.join(DATASETS)}")
    root = cache_root()
    source = DATASETS[name](str(data_dir), root)
    source.fetch()
    dataset = open_prepared(name, source, root)
    if require_test and not len(dataset.test):
        raise DataError(f"no test images in {Path(data_dir).expanduser().resolve() / 'test'}")
    return dataset


def to_pixels(images: NDArray[np.uint8], max_value: int) -> Tensor:
    """Return pixels in [0, 1] as a new float32 tensor.

    Parameters
    ----------
    images : NDArray[np.uint8]
        ``[n, c, h, w]``, with values in [0, max_value].
    max_value : int
        The value that stands for a pixel of 1.0, in [1, 255].

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
        One value of each per channel; std > 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return ``pixels`` [..., c, h, w] normalised, with the same dtype and device."""
        shift = pixels.new_tensor(self.mean)[:, None, None]
        scale = pixels.new_tensor(self.std)[:, None, None]
        return (pixels - shift) / scale


def unit_range(mean: tuple[float, ...], std: tuple[float, ...]) -> Normalization:
    """Return the normalisation from [0, 1] to [-1, 1]; the data set's moments play no part."""
    return Normalization((0.5,) * len(mean), (0.5,) * len(std))


def as_mnist(mean: tuple[float, ...], std: tuple[float, ...]) -> Normalization:
    """Return MNIST's normalisation; published code uses it for Fashion-MNIST as well."""
    return Normalization((0.1307,) * len(mean), (0.3081,) * len(std))


# Normalisations by their name in the run config; each is made from mean and standard deviation of
# the training split.
NORMALIZATIONS: Mapping[str, Callable[[tuple[float, ...], tuple[float, ...]], Normalization]] = (
    MappingProxyType({"data": Normalization, "unit-range": unit_range, "mnist": as_mnist})
)
