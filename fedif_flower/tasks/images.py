"""The built-in task: a classifier of images, from a data set and a model by their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.settings import AUTO
from fedif_flower.tasks.config import IMAGES, TaskConfig
from fedif_flower.tasks.data import (
    NORMALIZATIONS,
    Dataset,
    Normalization,
    dirichlet_partition,
    load_dataset,
    split_test,
    to_pixels,
)
from fedif_flower.tasks.data.export import class_folders
from fedif_flower.tasks.models import ImageShape, default_model, new_model
from fedif_flower.tasks.task import ClientSite, Site, Task

_Config = TypeVar("_Config", bound=TaskConfig)


def settled(config: _Config, *, verify: bool = False) -> _Config:
    """Return the settings with the model that ``model = "auto"`` stands for.

    Parameters
    ----------
    config : TaskConfig
        A run's settings; those of a task other than images are returned as they are.
    verify : bool
        Compare the data set's prepared files with their checksums.
    """
    if config.task != IMAGES:
        return config
    dataset = load_dataset(config.dataset, config.data_dir, verify=verify)
    return (
        config if config.model != AUTO else config.replace(model=default_model(dataset.image_shape))
    )


def image_task(settings: TaskConfig, facts: Mapping[str, Any] | None = None) -> Task:
    """Return the task that ``dataset``, ``model``, ``normalization`` and ``dirichlet-alpha`` name.

    Parameters
    ----------
    settings : TaskConfig
        These settings.
    facts : mapping, optional
        On a client: the shape, classes, mean and standard deviation of the server's images. A
        client that has images of its own needs no other data set.

    Raises
    ------
    DataError, ConfigError
        If the data set cannot be read.
    """
    if facts is not None:
        return _task(settings, facts)
    dataset = load_dataset(settings.dataset, settings.data_dir)
    return _task(settings, _facts(settings, dataset), len(dataset.train), dataset.fingerprint)


def task_of_folder(settings: TaskConfig, folder: str) -> Task:
    """Return the task that a client's own images make by themselves, whatever the server's are.

    Parameters
    ----------
    settings : TaskConfig
        The run's.
    folder : str
        A tree ``train/<class>/``.

    Raises
    ------
    DataError, ConfigError
        If it cannot be read, or the model does not take such images.
    """
    dataset = _dataset("image-folder", folder, require_test=False)
    if settings.model == AUTO:
        settings = settings.replace(model=default_model(dataset.image_shape))
    return _task(settings, _facts(settings, dataset))


def _facts(settings: TaskConfig, dataset: Dataset) -> dict[str, Any]:
    normalization = NORMALIZATIONS[settings.normalization](dataset.mean, dataset.std)
    return {
        "image-shape": list(dataset.image_shape),
        "classes": list(dataset.classes),
        "mean": list(normalization.mean),
        "std": list(normalization.std),
    }


def _task(
    settings: TaskConfig,
    facts: Mapping[str, Any],
    num_train: int | None = None,
    fingerprint: str = "",
) -> Task:
    channels, height, width = facts["image-shape"]
    image_shape, classes = (channels, height, width), list(facts["classes"])
    normalization = Normalization(tuple(facts["mean"]), tuple(facts["std"]))
    name, data_dir = settings.dataset, settings.data_dir

    def client_data(site: ClientSite) -> tuple[Tensor, Tensor]:
        dataset, chosen = _client_images(settings, site)
        _check_alike(dataset, image_shape, classes)
        return _examples(dataset, dataset.train.images, dataset.train.labels, chosen)

    def validation_data(site: Site) -> tuple[Tensor, Tensor]:
        return _held_out(name, data_dir, site.seed, 0)

    def test_data(site: Site) -> tuple[Tensor, Tensor]:
        return _held_out(name, data_dir, site.seed, 1)

    return Task(
        name=name,
        model=lambda: new_model(settings.model, image_shape, len(classes)),
        client_data=client_data,
        validation_data=validation_data,
        test_data=test_data,
        num_classes=len(classes),
        input_range=(0.0, 1.0),
        transform=normalization,
        facts=facts,
        num_train=num_train,
        fingerprint=fingerprint,
    )


def _client_images(
    settings: TaskConfig, site: ClientSite
) -> tuple[Dataset, NDArray[np.int64] | None]:
    """Return a data set and which of its training images are the client's; ``None``: all."""
    data_dir = str(site.data_dir or "")
    if site.num_partitions is None:
        return _dataset("image-folder", data_dir, require_test=False), None
    dataset = _dataset(settings.dataset, data_dir)
    if site.num_partitions > len(dataset.train):
        raise ConfigError(
            f"num-clients = {site.num_partitions}; allowed: at most the {len(dataset.train)} "
            f"training examples of {settings.dataset!r}"
        )
    division = (site.num_partitions, settings.dirichlet_alpha, site.seed)
    return dataset, _parts(settings.dataset, data_dir, *division)[site.partition_id]


def _check_alike(dataset: Dataset, image_shape: ImageShape, classes: list[str]) -> None:
    """Raise DataError if a client's images or labels are not of the server's kind."""
    if list(dataset.classes) not in (classes, class_folders(classes)):
        raise DataError(
            f"this client's classes are {', '.join(dataset.classes)}; the server's are "
            f"{', '.join(classes)}: each needs a folder here, if only an empty one"
        )
    if dataset.image_shape != image_shape:
        own, theirs = ("x".join(map(str, shape)) for shape in (dataset.image_shape, image_shape))
        raise DataError(f"this client's images are {own}; the server's are {theirs}")


def _examples(
    dataset: Dataset,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    chosen: NDArray[np.int64] | None,
) -> tuple[Tensor, Tensor]:
    """Return pixels ``[n, c, h, w]`` in [0, 1] and labels ``[n]`` of the chosen images."""
    if chosen is not None:
        images, labels = images[chosen], labels[chosen]
    return to_pixels(images, dataset.max_value), torch.from_numpy(labels.copy())


_dataset = lru_cache(maxsize=4)(load_dataset)


@lru_cache(maxsize=4)
def _parts(
    name: str, data_dir: str, num_partitions: int, dirichlet_alpha: float, seed: int
) -> list[NDArray[np.int64]]:
    """Return who has which images; read once, since a process may play many clients."""
    dataset = _dataset(name, data_dir)
    return dirichlet_partition(dataset, num_partitions, dirichlet_alpha, seed)


def _held_out(name: str, data_dir: str, seed: int, part: int) -> tuple[Tensor, Tensor]:
    """Return a part of the test split: 0, what the server validates on; 1, what it tests on."""
    dataset = load_dataset(name, data_dir)
    images, labels = dataset.test.images, dataset.test.labels
    return _examples(dataset, images, labels, split_test(len(labels), seed)[part])
