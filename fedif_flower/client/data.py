"""A client's own examples."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.tasks.data import Dataset, dirichlet_partition, load_dataset, to_pixels
from fedif_flower.tasks.data.export import class_folders


class ClientData(NamedTuple):
    """A client's own examples: pixels ``[n, c, h, w]`` in [0, 1] and labels ``[n]``."""

    pixels: Tensor
    labels: Tensor
    dataset: Dataset


def client_data(config: ClientConfig, node: NodeConfig) -> ClientData:
    """Return a node's examples: its own folder's, or its part of the shared data set.

    Raises
    ------
    DataError, ConfigError
        If the data cannot be read, or the node's partition does not exist.
    """
    if node.num_partitions is None:
        dataset = _dataset("image-folder", node.data_dir or "", False)
        images, labels = dataset.train.images, dataset.train.labels
    else:
        dataset = _dataset(config.dataset, node.data_dir or config.data_dir, True)
        if node.num_partitions != config.num_clients:
            raise ConfigError(
                f"num-clients = {config.num_clients}, but this node is one of "
                f"{node.num_partitions} partitions: give both the same number"
            )
        parts = dirichlet_partition(
            dataset, node.num_partitions, config.dirichlet_alpha, config.seed
        )
        chosen = parts[node.partition_id]
        images, labels = dataset.train.images[chosen], dataset.train.labels[chosen]
    return ClientData(
        to_pixels(images, dataset.max_value), torch.from_numpy(labels.copy()), dataset
    )


def check_classes(dataset: Dataset, classes: list[str]) -> None:
    """Raise DataError if this client's labels do not mean what the server's do."""
    if list(dataset.classes) not in (classes, class_folders(classes)):
        raise DataError(
            f"this client's classes are {', '.join(dataset.classes)}; the server's are "
            f"{', '.join(classes)}: each needs a folder here, if only an empty one"
        )


@lru_cache(maxsize=4)
def _dataset(name: str, data_dir: str, require_test: bool) -> Dataset:
    return load_dataset(name, data_dir, require_test=require_test)
