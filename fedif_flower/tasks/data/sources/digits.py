"""The data set that needs no download: 1,797 scans of handwritten digits from scikit-learn."""

from __future__ import annotations

import numpy as np

from fedif_flower.seeding import numpy_generator
from fedif_flower.tasks.data.cache import RawDataset, RawSplit, Source

NUM_TRAIN = 1_197


class Digits(Source):
    """Greyscale scans of 8x8 pixels with values 0 to 16: 1,197 for training and 600 for testing.

    The split is the same in every run. scikit-learn's copy is the test part of the UCI data set
    "Optical Recognition of Handwritten Digits".
    """

    def identity(self) -> dict[str, object]:
        """Return a constant: the scans never change."""
        return {"scans": "scikit-learn digits", "train": NUM_TRAIN, "split": "seed 0"}

    def read(self) -> RawDataset:
        """Read the scans and split them by a fixed shuffle."""
        # Imported here since it takes a second, and is needed only once on a machine.
        from sklearn.datasets import load_digits

        scans, labels = load_digits(return_X_y=True)  # [1797, 64], [1797]
        images = scans.astype(np.uint8).reshape(-1, 1, 8, 8)
        order = numpy_generator("digits-split", 0).permutation(len(images))

        def split(indices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> RawSplit:
            return RawSplit(labels[indices].astype(np.int64), lambda: [images[indices]])

        return RawDataset(
            classes=tuple("0123456789"),
            image_shape=(1, 8, 8),
            max_value=16,
            train=split(order[:NUM_TRAIN]),
            test=split(order[NUM_TRAIN:]),
        )
