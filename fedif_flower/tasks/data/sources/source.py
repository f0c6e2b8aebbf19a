"""What a data set must offer so that the cache can prepare it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RawSplit:
    """One split, as its source delivers it.

    Attributes
    ----------
    labels : NDArray[np.int64]
        ``[n]``, in [0, classes).
    blocks : callable
        Called without arguments, yields the n images in order, in uint8 blocks ``[b, c, h, w]``
        of any b >= 1, so that they never need to be in memory together.
    """

    labels: NDArray[np.int64]
    blocks: Callable[[], Iterable[NDArray[np.uint8]]]


@dataclass(frozen=True, eq=False)
class RawDataset:
    """A data set before it is prepared.

    Attributes
    ----------
    classes : tuple of str
        Name of each label.
    image_shape : tuple of int
        ``(c, h, w)``.
    max_value : int
        The uint8 value that stands for pixel 1.0.
    train, test : RawSplit
        The images; ``test`` may have none.
    mean, std : tuple of float, optional
        Per channel, of pixels in [0, 1]; computed from the train split if left out.
    """

    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    max_value: int
    train: RawSplit
    test: RawSplit
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Source(ABC):
    """Where a data set comes from.

    Attributes
    ----------
    data_dir : str
        Folder of the user's data; ``""`` where none was given.
    cache_root : Path
        This package's folder in the user's cache.
    """

    data_dir: str
    cache_root: Path

    def fetch(self) -> None:  # noqa: B027 (a source that has everything has nothing to do)
        """Bring the source files here if they are missing."""

    def has_test(self) -> bool:
        """Return whether there are test images."""
        return True

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """Return a JSON-able description that changes, at little cost, when the source does."""

    @abstractmethod
    def read(self) -> RawDataset:
        """Open the source.

        Raises
        ------
        DataError
            If it is missing or damaged, here or while its blocks are read.
        """
