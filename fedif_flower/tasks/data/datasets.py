"""Data sets by name, as read-only arrays that all processes of a machine share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.storage import cache_root
from fedif_flower.tasks.data.cache import open_prepared
from fedif_flower.tasks.data.sources import CIFAR10, Digits, FashionMNIST, ImageFolder, Source

# One line per data set: its name and the class that knows where it comes from.
DATASETS: Mapping[str, Callable[[str, Path], Source]] = MappingProxyType(
    {
        "digits": Digits,
        "fashion-mnist": FashionMNIST,
        "cifar10": CIFAR10,
        "image-folder": ImageFolder,
    }
)


@dataclass(frozen=True, eq=False)
class Split:
    """The images of one split with their labels.

    Attributes
    ----------
    images : NDArray[np.uint8]
        ``[n, c, h, w]``, memory-mapped and read-only.
    labels : NDArray[np.int64]
        ``[n]``, in [0, classes), memory-mapped and read-only.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return n."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set; open it in each process (it is quick) rather than sending it to another.

    Attributes
    ----------
    name : str
        Its name in ``DATASETS``.
    train, test : Split
        The images; ``test`` may be empty on a client's own data.
    classes : tuple of str
        Name of each label.
    max_value : int
        The uint8 value that stands for pixel 1.0: 255, or 16 for digits.
    mean, std : tuple of float
        Per channel, of the train split's pixels in [0, 1].
    fingerprint : str
        Hex digits that change whenever pixels, labels or any other attribute do.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    max_value: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str

    @property
    def num_classes(self) -> int:
        """How many labels there are."""
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """``(c, h, w)``."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


def load_dataset(
    name: str,
    data_dir: str | Path = "",
    *,
    cache_dir: str | Path | None = None,
    verify: bool = False,
    require_test: bool = True,
) -> Dataset:
    """Open a data set; the first time on a machine it is prepared (and downloaded, if need be).

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.
    data_dir : str or Path
        Where its files are: unused for ``digits``, required for ``image-folder``; otherwise the
        root that torchvision reads from, or downloads to when its files are not there.
        ``""``: downloads go to the cache. It may be read-only.
    cache_dir : str or Path, optional
        Instead of ``$XDG_CACHE_HOME`` or ``~/.cache``.
    verify : bool
        Compare the prepared files with their checksums first.
    require_test : bool
        Whether a data set without test images is an error; a client needs none.

    Raises
    ------
    ConfigError
        If the name is unknown, or ``data_dir`` is needed and empty.
    DataError
        If the data are missing, unreadable or inconsistent, or the cache cannot be written.
    """
    if name not in DATASETS:
        raise ConfigError(f"dataset = {name!r}; allowed: {', '.join(DATASETS)}")
    root = cache_root(cache_dir)
    source = DATASETS[name](str(data_dir), root)
    source.fetch()
    if require_test and not source.has_test():
        raise DataError(f"no test images in {Path(data_dir).expanduser().resolve() / 'test'}")
    prepared = open_prepared(name, source, root, verify=verify)
    meta, arrays = prepared.meta, prepared.arrays
    return Dataset(
        name=name,
        train=Split(arrays["train_images"], arrays["train_labels"]),
        test=Split(arrays["test_images"], arrays["test_labels"]),
        classes=tuple(meta["classes"]),
        max_value=meta["max_value"],
        mean=tuple(meta["mean"]),
        std=tuple(meta["std"]),
        fingerprint=meta["fingerprint"],
    )
