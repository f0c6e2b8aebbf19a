"""The built-in task: a classifier of images, made of a data set and a model named in settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.errors import DataError
from fedif_flower.settings import AUTO
from fedif_flower.tasks.config import IMAGES, TaskConfig
from fedif_flower.tasks.data.cache import Dataset, Split
from fedif_flower.tasks.data.datasets import NORMALIZATIONS, Normalization, load_dataset, to_pixels
from fedif_flower.tasks.data.partition import dirichlet_partition, split_test
from fedif_flower.tasks.data.sources.image_folder import class_folders
from fedif_flower.tasks.models import ImageShape, default_model, new_model
from fedif_flower.tasks.task import ClientSite, Site, Task

logger = logging.getLogger(__name__)
_Config = TypeVar("_Config", bound=TaskConfig)


def settled(config: _Config) -> _Config:
    """Return the settings with ``model = "auto"`` replaced by the model that it stands for.

    Parameters
    ----------
    config : TaskConfig
        A run's settings. Settings of a task other than images are returned as they are.
    """
    if config.task != IMAGES or config.model != AUTO:
        return config
    dataset = load_dataset(config.dataset, config.data_dir)
    return config.replace(model=default_model(dataset.image_shape))


def image_task(settings: TaskConfig, facts: Mapping[str, Any] | None = None) -> Task:
    """Return a classifier of images, made of the data set and the model that the settings name.

    Parameters
    ----------
    settings : TaskConfig
        The settings ``dataset``, ``data-dir``, ``model``, ``normalization`` and
        ``dirichlet-alpha``.
    facts : mapping, optional
        On a client: the shape, classes, mean and standard deviation of the server's images. With
        them a client that has images of its own need not have the server's data set.

    Raises
    ------
    DataError, ConfigError
        If the data set cannot be read.
    """
    if facts is not None:
        return _task(settings, facts)
    for read_before in (_dataset, _own_images, _parts):
        read_before.cache_clear()  # Files may have changed since an earlier run of this process.
    dataset = load_dataset(settings.dataset, settings.data_dir)
    _warn_of(dataset, settings.data_dir)
    task = _task(settings, _facts(settings, dataset), len(dataset.train), dataset.fingerprint)
    return replace(task, remarks=dataset.remarks)


def task_of_folder(settings: TaskConfig, folder: str) -> Task:
    """Return a task whose image shape and classes come from a client's own images.

    The server's images play no part in it.

    Parameters
    ----------
    settings : TaskConfig
        The run's settings.
    folder : str
        The client's images, a tree ``train/<class>/``.

    Raises
    ------
    DataError, ConfigError
        If the folder cannot be read.
    """
    dataset = _own_images(folder)
    if settings.model == AUTO:
        settings = settings.replace(model=default_model(dataset.image_shape))
    return _task(settings, _facts(settings, dataset))


def _facts(settings: TaskConfig, dataset: Dataset) -> dict[str, Any]:
    """Return what the server tells clients about its images."""
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
    """Return the task of images that have the shape, classes and moments given in ``facts``."""
    channels, height, width = facts["image-shape"]
    image_shape = (channels, height, width)
    classes = list(facts["classes"])

    def client_data(site: ClientSite) -> tuple[Tensor, Tensor]:
        data_dir = str(site.data_dir or "")
        chosen: slice | NDArray[np.int64] = slice(None)
        if site.num_partitions is None:
            dataset = _own_images(data_dir)
        else:
            dataset = _dataset(settings.dataset, data_dir)
            parts = _parts(
                settings.dataset,
                data_dir,
                site.num_partitions,
                settings.dirichlet_alpha,
                site.seed,
            )
            chosen = parts[site.partition_id]
        _check_alike(dataset, image_shape, classes)
        return _examples(dataset, dataset.train, chosen)

    def held_out(site: Site, part: int) -> tuple[Tensor, Tensor]:
        dataset = load_dataset(settings.dataset, settings.data_dir)
        chosen = split_test(len(dataset.test), site.seed)[part]
        return _examples(dataset, dataset.test, chosen)

    return Task(
        name=settings.dataset,
        model=lambda: new_model(settings.model, image_shape, len(classes)),
        client_data=client_data,
        validation_data=lambda site: held_out(site, 0),
        test_data=lambda site: held_out(site, 1),
        num_classes=len(classes),
        input_range=(0.0, 1.0),
        transform=Normalization(tuple(map(float, facts["mean"])), tuple(map(float, facts["std"]))),
        facts=facts,
        num_train=num_train,
        fingerprint=fingerprint,
    )


def _check_alike(dataset: Dataset, image_shape: ImageShape, classes: list[str]) -> None:
    """Raise DataError if a client's classes or image shape differ from the server's."""
    if list(dataset.classes) not in (classes, class_folders(classes)):
        raise DataError(
            f"this client's classes are {', '.join(dataset.classes)}; the server's are "
            f"{', '.join(classes)}: each needs a folder here, if only an empty one"
        )
    if dataset.image_shape != image_shape:
        client_words = "x".join(map(str, dataset.image_shape))
        server_words = "x".join(map(str, image_shape))
        raise DataError(f"this client's images are {client_words}; the server's are {server_words}")


def _examples(
    dataset: Dataset, split: Split, chosen: slice | NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Return pixels ``[n, c, h, w]`` in [0, 1] and labels ``[n]`` of the chosen images."""
    pixels = to_pixels(split.images[chosen], dataset.max_value)
    return pixels, torch.from_numpy(np.array(split.labels[chosen]))


def _warn_of(dataset: Dataset, folder: str) -> None:
    """Log a data set's remarks, such as which files of its folder are not read."""
    for remark in dataset.remarks:
        logger.warning("%s: %s", folder, remark)


_dataset = lru_cache(maxsize=4)(load_dataset)


@lru_cache(maxsize=4)
def _own_images(folder: str) -> Dataset:
    """Open a client's own images; log once, thanks to the cache, which files are not read."""
    dataset = load_dataset("image-folder", folder, require_test=False)
    _warn_of(dataset, folder)
    return dataset


@lru_cache(maxsize=4)
def _parts(
    name: str, data_dir: str, num_partitions: int, dirichlet_alpha: float, seed: int
) -> list[NDArray[np.int64]]:
    """Return each client's images, as indices; cached, since a process may play many clients."""
    return dirichlet_partition(
        _dataset(name, data_dir).train.labels, num_partitions, dirichlet_alpha, seed
    )
