"""One client's side of a round: its data, its behaviour, its training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedif_flower.attacks import Behaviour, behaviour_of, build_behaviour
from fedif_flower.client.training import train_local
from fedif_flower.devices import select_device, torch_threads
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.messages.models import load_arrays, model_arrays
from fedif_flower.run.config import NodeConfig, RunConfig
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.data import (
    Dataset,
    Normalization,
    dirichlet_partition,
    load_dataset,
    to_pixels,
)
from fedif_flower.tasks.data.export import class_folders
from fedif_flower.tasks.models import build_model

RUN_CONFIG_KEY = "run-config"
PROXIMAL_KEY = "proximal-mu"
MEAN_KEY, STD_KEY, CLASSES_KEY = "pixel-mean", "pixel-std", "classes"


class ClientData(NamedTuple):
    """A client's own examples: pixels ``[n, c, h, w]`` in [0, 1] and labels ``[n]``."""

    pixels: Tensor
    labels: Tensor
    dataset: Dataset


def describe_node(message: Message, context: Context) -> Message:
    """Answer the server's question which partition this node holds."""
    node = NodeConfig.from_node_config(context.node_config)
    answer = ConfigRecord({"partition-id": node.partition_id, "attack": node.attack or ""})
    return Message(content=RecordDict({"node": answer}), reply_to=message)


def train_round(message: Message, context: Context) -> Message:
    """Train the received model on this node's data, honestly or not, and send it back."""
    # Not ``content.array_records``: that leaves a cycle of references, and with it the arrays,
    # in this process until the garbage collector comes by.
    settings = cast(ConfigRecord, message.content["config"])
    arrays = cast(ArrayRecord, message.content["arrays"])
    config = RunConfig.from_json(str(settings[RUN_CONFIG_KEY]))
    node = NodeConfig.from_node_config(context.node_config)
    started = time.perf_counter()
    with torch_threads(config.threads_per_client):
        data = client_data(config, node)
        check_classes(data.dataset, settings)
        model = _model(config.model, data.dataset.image_shape, data.dataset.num_classes)
        model.to(select_device(config.device))
        load_arrays(model, arrays)
        loss = train_model(
            model,
            data,
            config,
            node,
            normalize=read_normalization(settings),
            server_round=cast(int, settings["server-round"]),
            proximal_mu=cast(float, settings.get(PROXIMAL_KEY, 0.0)),
        )
    metrics = MetricRecord(
        {
            "num-examples": len(data.labels),
            "train-loss": loss,
            "train-seconds": time.perf_counter() - started,
        }
    )
    content = RecordDict({"arrays": model_arrays(model), "metrics": metrics})
    return Message(content=content, reply_to=message)


def data_settings(
    normalize: Normalization, classes: Sequence[str]
) -> dict[str, list[float] | list[str]]:
    """Return what the server tells clients of its data: theirs may have another mean, or labels."""
    return {
        MEAN_KEY: list(normalize.mean),
        STD_KEY: list(normalize.std),
        CLASSES_KEY: list(classes),
    }


def read_normalization(settings: ConfigRecord) -> Normalization:
    """Return the server's normalisation of pixels."""
    mean, std = (cast(list[float], settings[key]) for key in (MEAN_KEY, STD_KEY))
    return Normalization(tuple(mean), tuple(std))


def check_classes(dataset: Dataset, settings: ConfigRecord) -> None:
    """Raise DataError if this client's labels do not mean what the server's do."""
    classes = cast(list[str], settings[CLASSES_KEY])
    if list(dataset.classes) not in (classes, class_folders(classes)):
        raise DataError(
            f"this client's classes are {', '.join(dataset.classes)}; the server's are "
            f"{', '.join(classes)}: each needs a folder here, if only an empty one"
        )


def client_data(config: RunConfig, node: NodeConfig) -> ClientData:
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


def behaviour(config: RunConfig, node: NodeConfig) -> Behaviour:
    """Return what a node does: its own ``attack`` if set, else what the seed made of it."""
    if node.attack is not None:
        attacks = replace(config.attacks, attack=node.attack)
        return build_behaviour(attacks, partition_id=node.partition_id, seed=config.seed)
    return behaviour_of(
        config.attacks,
        partition_id=node.partition_id,
        num_clients=config.num_clients,
        seed=config.seed,
    )


def train_model(
    model: nn.Module,
    data: ClientData,
    config: RunConfig,
    node: NodeConfig,
    *,
    normalize: Normalization,
    server_round: int,
    proximal_mu: float = 0.0,
) -> float:
    """Train ``model`` in place as this node does in this round; return the training loss."""
    device = next(model.parameters()).device
    acting, ids = behaviour(config, node), (config.seed, node.partition_id)
    labels = acting.poison_labels(
        data.labels, data.dataset.num_classes, torch_generator("poison-labels", *ids)
    ).to(device)
    pixels = acting.poison_inputs(
        model,
        data.pixels.to(device),
        labels,
        normalize,
        torch_generator("poison-inputs", *ids, server_round),
    )
    loss = train_local(
        model,
        normalize(pixels),
        labels,
        replace(config.training, proximal_mu=proximal_mu),
        torch_generator("local-training", *ids, server_round),
    )
    with torch.no_grad():
        trained = [p for p in model.parameters() if p.requires_grad]
        params = parameters_to_vector(trained)
        poisoned = acting.poison_update(
            params, torch_generator("poison-update", *ids, server_round)
        )
        if poisoned is not params:
            vector_to_parameters(poisoned.to(device), trained)
    return loss


@lru_cache(maxsize=4)
def _dataset(name: str, data_dir: str, require_test: bool) -> Dataset:
    return load_dataset(name, data_dir, require_test=require_test)


@lru_cache(maxsize=4)
def _model(name: str, image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    # Every weight is overwritten by the server's: the seed does not matter.
    return build_model(name, image_shape, num_classes, seed=0)
