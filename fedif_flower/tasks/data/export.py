"""Images as folders, a folder for each class: what a node of a deployment has on its own disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedif_flower.tasks.data.cache import Dataset, Split


def export_split(dataset: Dataset, split: Split, indices: NDArray[np.int64], folder: Path) -> None:
    """Write images of one of a data set's splits as ``folder/<class>/<index>.png``.

    The folder above it loads as an ``image-folder`` with the labels of ``dataset``: classes whose
    names do not sort in label order get the label as a prefix, and classes without examples an
    empty folder. PNG loses nothing; where ``max_value`` is not 255, as with digits, values are
    scaled to 255 and rounded: a pixel in [0, 1] comes back with an error of at most 0.5 / 255.

    Parameters
    ----------
    dataset : Dataset
        Names the classes, and says what a white pixel is.
    split : Split
        Its images ``[n, c, h, w]`` of 1 or 3 channels, and labels ``[n]``.
    indices : NDArray
        Which of them, 0 to n - 1.
    folder : Path
        Folders of all classes are made in it; they must not be there yet.
    """
    names = class_folders(dataset.classes)
    for name in names:
        (folder / name).mkdir(parents=True)
    digits = len(str(len(split) - 1))  # files then sort by index
    for index in indices.tolist():
        image = split.images[index]  # [c, h, w]
        if dataset.max_value != 255:
            image = np.rint(image * (255 / dataset.max_value)).astype(np.uint8)
        pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        name = names[split.labels[index]]
        Image.fromarray(pixels).save(folder / name / f"{index:0{digits}}.png")


def class_folders(classes: Sequence[str]) -> list[str]:
    """Return a folder name per class, valid on any file system and sorting in label order."""
    names = [re.sub(r"[^\w.+ -]|^\.", "_", name) or "_" for name in classes]
    if all(first < second for first, second in pairwise(names)):
        return names
    digits = len(str(len(names) - 1))
    return [f"{label:0{digits}}-{name}" for label, name in enumerate(names)]
