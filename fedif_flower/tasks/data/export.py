"""Partitions as folders of images: what each node of a deployment has on its own disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedif_flower.errors import DataError
from fedif_flower.tasks.data.datasets import Dataset, Split


def export_partitions(
    dataset: Dataset, partitions: Sequence[NDArray[np.int64]], output_dir: str | Path
) -> None:
    """Write ``output_dir/partition-<i>/train/<class>/<index>.png`` for each partition i.

    Each folder loads as an ``image-folder`` (``require_test=False``) with the labels of
    ``dataset``: classes whose names do not sort in label order get the label as a prefix, and
    classes without examples an empty folder, which must be copied along. PNG loses nothing; where
    ``max_value`` is not 255, as with digits, values are scaled to 255 and rounded, so that a pixel
    in [0, 1] comes back with an error of at most 0.5 / 255.

    Parameters
    ----------
    dataset : Dataset
        Its train split is exported.
    partitions : sequence of NDArray[np.int64]
        Indices into it.
    output_dir : str or Path
        Created if it does not exist.

    Raises
    ------
    DataError
        If a partition's folder exists already, a folder cannot be written, or images have
        neither 1 nor 3 channels.
    """
    if dataset.image_shape[0] not in (1, 3):
        raise DataError(f"images of {dataset.image_shape[0]} channels cannot be exported as PNG")
    output_dir = Path(output_dir).expanduser().absolute()
    folders = [output_dir / f"partition-{i}" for i in range(len(partitions))]
    if existing := [folder for folder in folders if folder.exists()]:
        raise DataError(f"{existing[0]} exists already; remove it or choose another folder")
    try:
        for folder, indices in zip(folders, partitions, strict=True):
            export_split(dataset, dataset.train, indices, folder / "train")
    except OSError as error:
        raise DataError(f"cannot write images to {output_dir}: {error}") from error


def export_split(dataset: Dataset, split: Split, indices: NDArray[np.int64], folder: Path) -> None:
    """Write images of one of a data set's splits as ``folder/<class>/<index>.png``.

    Parameters
    ----------
    dataset : Dataset
        Names the classes, and says what a white pixel is.
    split : Split
        Its images ``[n, c, h, w]`` and labels ``[n]``.
    indices : NDArray
        Which of them, 0 to n - 1.
    folder : Path
        Folders of all classes are made in it.
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
