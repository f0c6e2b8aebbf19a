"""Data sets of torchvision: read where their files are present, downloaded otherwise."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedif_flower.errors import DataError
from fedif_flower.storage import cache_errors, exclusive_lock
from fedif_flower.tasks.data.cache import Moments, RawDataset, RawSplit, Source

logger = logging.getLogger(__name__)


class TorchvisionSource(Source):
    """A data set that ``torchvision.datasets`` can download and read.

    A subclass has the name of torchvision's class. Without ``data_dir`` files are downloaded into
    this package's folder in the user's cache.

    Attributes
    ----------
    title : str
        The data set's name for people.
    folder : str
        Torchvision's folder for the files, below the root.
    files : tuple of str
        The files in that folder.
    moments : tuple of two tuples of float
        Published means and standard deviations of the channels, of pixels in [0, 1].
    """

    title: ClassVar[str]
    folder: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    moments: ClassVar[Moments]

    def _open(self, *, train: bool, download: bool = False) -> Any:
        """Return torchvision's data set of one split."""
        # Imported here since it takes a second, and is needed only once on a machine.
        from torchvision import datasets

        return getattr(datasets, type(self).__name__)(self.root, train=train, download=download)

    @property
    def root(self) -> Path:
        """The folder in which torchvision looks for its own folder."""
        if not self.data_dir:
            return self.cache_root / "downloads"
        return Path(self.data_dir).expanduser().resolve()

    def _is_present(self) -> bool:
        folder = self.root / self.folder
        return all((folder / name).is_file() for name in self.files)

    def fetch(self) -> None:
        """Download the files unless all are present; of several processes one downloads.

        Raises
        ------
        DataError
            If ``data_dir`` is no folder, or the download fails.
        """
        if self._is_present():
            return
        if self.data_dir and not self.root.is_dir():  # Torchvision would make a mistyped folder.
            raise DataError(f"data-dir = {self.data_dir!r}: there is no such folder")
        lock = self.cache_root / f"download-{self.title.lower()}.lock"
        with cache_errors(self.cache_root), exclusive_lock(lock):
            if self._is_present():
                return
            logger.info("downloading %s to %s", self.title, self.root)
            try:
                self._open(train=True, download=True)
            except Exception as error:  # Torchvision documents no errors of network or disk.
                reason = " ".join(str(error).split())  # Torchvision's text has many lines.
                raise DataError(
                    f"{self.title} is not in {self.root} and could not be downloaded there "
                    f"({reason}). To use a copy, put {', '.join(self.files)} into "
                    f"{self.root / self.folder}, or set data-dir to the folder above "
                    f"{self.folder}"
                ) from error

    def identity(self) -> dict[str, object]:
        """Return the folder, and every file's size and time of change."""
        files = []
        for name in self.files:
            stat = (self.root / self.folder / name).stat()
            files.append([name, stat.st_size, stat.st_mtime_ns])
        return {"root": str(self.root), "files": files}

    def read(self) -> RawDataset:
        """Read both splits with torchvision."""
        try:
            train = self._open(train=True)
            test = self._open(train=False)
            train_split = _raw_split(train)
            test_split = _raw_split(test)
        except Exception as error:  # Torchvision documents no errors: a damaged file may raise any.
            raise DataError(
                f"{self.title} in {self.root / self.folder} is damaged ({error}); remove that "
                "folder to have it downloaded again"
            ) from error
        return RawDataset(
            classes=tuple(train.classes),
            image_shape=(len(self.moments[0]), *train.data.shape[1:3]),
            max_value=255,
            train=train_split,
            test=test_split,
            moments=self.moments,
        )


def _raw_split(dataset: Any) -> RawSplit:
    """Return one split of a torchvision data set, with the channels first."""
    pixels = np.asarray(dataset.data)  # [n, h, w] or [n, h, w, c]
    is_grey = pixels.ndim == 3
    images = pixels[:, None] if is_grey else pixels.transpose(0, 3, 1, 2)  # [n, c, h, w]
    labels = np.asarray(dataset.targets, dtype=np.int64)
    return RawSplit(labels, lambda: [images])


class FashionMNIST(TorchvisionSource):
    """Photographs of ten kinds of clothes, 28x28, grey: 60,000 and 10,000 (Zalando, 2017)."""

    title = "Fashion-MNIST"
    folder = "FashionMNIST/raw"
    files = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    moments = (0.2860,), (0.3530,)


class CIFAR10(TorchvisionSource):
    """Photographs of ten kinds of things, 32x32, colour: 50,000 and 10,000 (Krizhevsky, 2009)."""

    title = "CIFAR-10"
    folder = "cifar-10-batches-py"
    files = (
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
        "batches.meta",
    )
    moments = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
