"""One client's side of a round: its data, its behaviour, its training."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from functools import lru_cache
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedif_flower.attacks import (
    Behaviour,
    ClientRound,
    Colluder,
    attacks_now,
    behaviour_of,
    build_behaviour,
)
from fedif_flower.client.data import ClientData, check_classes, client_data
from fedif_flower.client.memory import attack_memory
from fedif_flower.client.training import train_local
from fedif_flower.devices import select_device, torch_threads
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import (
    ACCOMPLICE_KEY,
    COLLUSION_KEY,
    PROXIMAL_KEY,
    ROUND_KEY,
    RUN_KEY,
    read_classes,
    read_config,
    read_normalization,
)
from fedif_flower.messages.models import load_arrays, model_arrays
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.data import Normalization
from fedif_flower.tasks.models import build_model


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
    config = read_config(settings)
    node = NodeConfig.from_node_config(context.node_config)
    server_round = cast(int, settings[ROUND_KEY])
    acting = behaviour(config, node)
    if not attacks_now(server_round, config.attack_first_round, config.attack_period):
        acting = Behaviour()
    if isinstance(acting, Colluder) and not settings[COLLUSION_KEY]:
        raise ConfigError(
            f"attack {node.attack or config.attack!r} needs to see what the other malicious "
            "clients are about to send, which is possible only in a simulation whose run config "
            "names the attack"
        )
    started = time.perf_counter()
    with torch_threads(config.threads_per_client):
        data = client_data(config, node)
        check_classes(data.dataset, read_classes(settings))
        model = _model(config.model, data.dataset.image_shape, data.dataset.num_classes)
        model.to(select_device(config.device))
        load_arrays(model, arrays)
        with attack_memory(context.state, str(settings[RUN_KEY])) as memory:
            loss = train_model(
                model,
                data,
                config,
                acting,
                partition_id=node.partition_id,
                normalize=read_normalization(settings),
                server_round=server_round,
                memory=memory,
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
    if isinstance(acting, Colluder):
        content[ACCOMPLICE_KEY] = ConfigRecord({"partition-id": node.partition_id})
    return Message(content=content, reply_to=message)


def behaviour(config: ClientConfig, node: NodeConfig) -> Behaviour:
    """Return what a node does: its own ``attack`` if set, else what the seed assigns to it."""
    if node.attack is not None:
        own = config.replace(attack=node.attack)
        return build_behaviour(own, partition_id=node.partition_id, seed=config.seed)
    return behaviour_of(
        config,
        partition_id=node.partition_id,
        num_clients=config.num_clients,
        seed=config.seed,
    )


def train_model(
    model: nn.Module,
    data: ClientData,
    config: ClientConfig,
    acting: Behaviour,
    *,
    partition_id: int,
    normalize: Normalization,
    server_round: int,
    memory: MutableMapping[str, Tensor],
    proximal_mu: float = 0.0,
) -> float:
    """Train ``model`` in place as this node does in this round; return the training loss."""
    device = next(model.parameters()).device
    ids = (config.seed, partition_id)
    received = _trainable_vector(model)  # [d]
    labels = acting.poison_labels(
        data.labels, data.dataset.num_classes, torch_generator("poison-labels", *ids)
    ).to(device)
    pixels, labels = acting.poison_examples(
        data.pixels.to(device),
        labels,
        data.dataset.num_classes,
        torch_generator("poison-examples", *ids),
    )
    pixels = acting.poison_inputs(
        model,
        pixels,
        labels,
        normalize,
        torch_generator("poison-inputs", *ids, server_round),
    )
    loss = train_local(
        model,
        normalize(pixels),
        labels,
        config,
        torch_generator("local-training", *ids, server_round),
        proximal_mu=proximal_mu,
    )
    with torch.no_grad():
        trained = _trainable_vector(model)
        generator = torch_generator("poison-update", *ids, server_round)
        own = ClientRound(received, trained, server_round, generator, memory)
        poisoned = acting.poison_update(own)
        if poisoned is not trained:
            vector_to_parameters(poisoned.to(device), _trainable(model))
    return loss


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@torch.no_grad()
def _trainable_vector(model: nn.Module) -> Tensor:
    return parameters_to_vector(_trainable(model))


@lru_cache(maxsize=4)
def _model(name: str, image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    # Every weight is overwritten by the server's: the seed does not matter.
    return build_model(name, image_shape, num_classes, seed=0)
