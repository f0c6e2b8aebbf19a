"""Where a grid's data set lies, and what a report calls it."""

from __future__ import annotations

from pathlib import Path

from fedif_flower.settings import Scalar

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR10_JPEG = "CIFAR-10 (JPEG)"
_TITLES = {"cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST", "digits": "Digits"}


def find_data(dataset: str, data_dir: str) -> tuple[dict[str, Scalar], str]:
    """Return the settings that name a data set, and what to call it in a report.

    CIFAR-10 as folders of images, ``train/<class>/`` and ``test/<class>/`` in ``data_dir`` or in
    its ``cifar10``, is taken where it lies there; it is called JPEG if that is what the files are.
    """
    if dataset == "cifar10" and data_dir:
        for folder in (Path(data_dir).expanduser(), Path(data_dir).expanduser() / "cifar10"):
            train = folder / "train"
            if train.is_dir() and tuple(sorted(p.name for p in train.iterdir())) == CIFAR10_CLASSES:
                first = next((train / CIFAR10_CLASSES[0]).iterdir(), Path())
                lossy = first.suffix.lower() in (".jpg", ".jpeg")
                found: dict[str, Scalar] = {
                    "dataset": "image-folder",
                    "data-dir": str(folder.absolute()),
                }
                return found, CIFAR10_JPEG if lossy else "CIFAR-10 (image folder)"
    absolute = str(Path(data_dir).expanduser().absolute()) if data_dir else ""
    return {"dataset": dataset, "data-dir": absolute}, _TITLES.get(dataset, dataset)
