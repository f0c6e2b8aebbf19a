"""A small part of a data set as folders of images, for audits of data sets that take too long.

``python -m fedif_studies.subset FOLDER --dataset fashion-mnist --data-dir DIR`` draws images from
both splits and writes ``FOLDER/train/<class>/`` and ``FOLDER/test/<class>/``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedif_flower.seeding import numpy_generator
from fedif_flower.tasks.data import load_dataset
from fedif_flower.tasks.data.export import export_split


def main(
    folder: Annotated[Path, typer.Argument(help="must not exist yet")],
    dataset: Annotated[str, typer.Option(help="as in a run config")] = "fashion-mnist",
    data_dir: Annotated[str, typer.Option(help="where its files are")] = "",
    train: Annotated[int, typer.Option(help="images of the train split")] = 3000,
    test: Annotated[int, typer.Option(help="images of the test split")] = 1500,
    seed: Annotated[int, typer.Option(help="which images are drawn depends on it")] = 0,
) -> None:
    """Write the folders."""
    whole = load_dataset(dataset, data_dir)
    for name, split, count in (("train", whole.train, train), ("test", whole.test, test)):
        drawn = numpy_generator(f"subset-{name}", seed).permutation(len(split))[:count]
        export_split(whole, split, np.sort(drawn), folder / name)


if __name__ == "__main__":
    typer.run(main)
