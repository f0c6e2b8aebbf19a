"""Where a grid's data set lies, and what a report calls it."""

from __future__ import annotations

from pathlib import Path

from fedif_flower.settings import Scalar

_TITLES = {"cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST", "digits": "Digits"}


def find_data(dataset: str, data_dir: str) -> tuple[dict[str, Scalar], str]:
    """Return the settings that name a data set, and what to call it in a report.

    CIFAR-10 as folders of images, ``train/<class>/`` and ``test/<class>/`` in ``data_dir`` or in
    its ``cifar10``, is taken where it lies there; it is called JPEG if that is what the files are.
    """
    place = Path(data_dir).expanduser().absolute() if data_dir else Path()
    for folder in (place, place / "cifar10") if dataset == "cifar10" and data_dir else ():
        if (folder / "train" / "airplane").is_dir():
            first = next((folder / "train" / "airplane").iterdir(), Path())
            kind = "JPEG" if first.suffix.lower() in (".jpg", ".jpeg") else "image folder"
            return {"dataset": "image-folder", "data-dir": str(folder)}, f"CIFAR-10 ({kind})"
    where = str(place) if data_dir else ""
    return {"dataset": dataset, "data-dir": where}, _TITLES.get(dataset, dataset)
