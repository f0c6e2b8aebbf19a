"""One client's side of a round: its data, its behaviour, its training."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

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
    require_fit,
)
from fedif_flower.client.data import client_site
from fedif_flower.client.local import Trained, train_task
from fedif_flower.client.memory import node_memory
from fedif_flower.client.poisoning import poisoned_data
from fedif_flower.client.trust import require_trusted
from fedif_flower.devices import select_device, torch_threads
from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import (
    LocalMethod,
    LocalRound,
    Told,
    build_local_method,
    require_method_fit,
)
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import (
    ACCOMPLICE_KEY,
    COLLUSION_KEY,
    FACTS_KEY,
    GUIDE_RECORD,
    PROXIMAL_KEY,
    ROUND_KEY,
    RUN_KEY,
    TASK_KEY,
    VECTOR_KEY,
    VECTOR_RECORD,
    read_config,
)
from fedif_flower.messages.models import load_arrays, model_arrays, tensor_arrays
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.config import TaskConfig, TrainingConfig
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import Task


def describe_node(message: Message, context: Context) -> Message:
    """Answer the server's question which partition this node holds."""
    node = NodeConfig.from_node_config(context.node_config)
    answer = ConfigRecord({"partition-id": node.partition_id, "attack": node.attack or ""})
    return Message(content=RecordDict({"node": answer}), reply_to=message)


def train_round(message: Message, context: Context, task: Task | None = None) -> Message:
    """Train the received model on this node's data, honestly or not, and send it back.

    Parameters
    ----------
    message : Message
        The model's arrays and the round's settings.
    context : Context
        The node's config, and what it keeps from round to round.
    task : Task, optional
        The app's own; ``None``: the run config names one.
    """
    # Not ``content.array_records``: that leaves a cycle of references, and with it the arrays,
    # in this process until the garbage collector comes by.
    settings = cast(ConfigRecord, message.content["config"])
    arrays = cast(ArrayRecord, message.content["arrays"])
    config = read_config(settings)
    node = NodeConfig.from_node_config(context.node_config)
    server_round = cast(int, settings[ROUND_KEY])
    require_trusted(config, node)
    task = task or named_task(config.part(TaskConfig), str(settings[FACTS_KEY]))
    acting = behaviour(config, node)
    if not attacks_now(server_round, config.attack_first_round, config.attack_period):
        acting = Behaviour()
    method = build_local_method(config, task, config.seed)
    _require_fit(acting, task, settings, attack=node.attack or config.attack)
    started = time.perf_counter()
    with torch_threads(config.threads_per_client):
        data = task.load("client_data", client_site(config, node))
        require_method_fit(method, task, data, config.local_method)
        model = model_of(task)
        model.to(select_device(config.device))
        load_arrays(model, arrays)
        run = str(settings[RUN_KEY])
        with (
            node_memory(context.state, "attack", run) as memory,
            node_memory(context.state, "method", run) as of_method,
        ):
            local = LocalRound(
                model=model,
                received=_trainable_vector(model),
                training=config.part(TrainingConfig),
                memory=of_method,
                vector=_received_vector(message, method),
                told=cast(Told, message.content.get(GUIDE_RECORD, {})),
            )
            trained, beside = train_model(
                local,
                task,
                data,
                config,
                acting,
                method,
                partition_id=node.partition_id,
                server_round=server_round,
                memory=memory,
                proximal_mu=cast(float, settings.get(PROXIMAL_KEY, 0.0)),
            )
    metrics = MetricRecord(
        {
            "num-examples": trained.num_examples,
            "train-loss": trained.loss,
            "train-seconds": time.perf_counter() - started,
        }
    )
    content = RecordDict({"metrics": metrics, "arrays": model_arrays(model)})
    if beside:
        content[VECTOR_RECORD] = tensor_arrays(beside)
    if isinstance(acting, Colluder):
        content[ACCOMPLICE_KEY] = ConfigRecord({"partition-id": node.partition_id})
    return Message(content=content, reply_to=message)


def _received_vector(message: Message, method: LocalMethod) -> Tensor | None:
    """Return what the server sent beside the model, for a method that needs it."""
    if not method.sends_vector:
        return None
    vector: Tensor = cast(ArrayRecord, message.content[VECTOR_RECORD]).to_torch_state_dict()[
        VECTOR_KEY
    ]
    return vector


def _require_fit(
    acting: Behaviour,
    task: Task,
    settings: ConfigRecord,
    *,
    attack: str,
) -> None:
    """Raise ConfigError if a client cannot do what it is to do."""
    if isinstance(acting, Colluder) and not settings.get(COLLUSION_KEY):
        raise ConfigError(
            f"attack {attack!r} needs to see what the other malicious "
            "clients are about to send, which is possible only in a simulation whose run config "
            "names the attack"
        )
    if task.name != settings[TASK_KEY]:
        raise ConfigError(
            f"this client's task is {task.name!r}, the server's {settings[TASK_KEY]!r}"
        )
    require_fit(acting, task, attack)


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
    local: LocalRound,
    task: Task,
    data: Any,
    config: ClientConfig,
    acting: Behaviour,
    method: LocalMethod,
    *,
    partition_id: int,
    server_round: int,
    memory: MutableMapping[str, Tensor],
    proximal_mu: float = 0.0,
) -> tuple[Trained, Mapping[str, Tensor]]:
    """Train the model in place as this node does in this round.

    Parameters
    ----------
    local : LocalRound
        The model with the parameters received, and what the local method knows of the round.
    task : Task
        What the federation is about.
    data : Data
        This client's: tensors, or batches of any structure.
    config : ClientConfig
        Epochs, batches, learning rate and the rest of local training.
    acting : Behaviour
        What it does to its data, its training and its update.
    method : LocalMethod
        What it adds to plain SGD.
    partition_id, server_round : int
        Together with ``config.seed``, what is drawn depends on them.
    memory : mutable mapping of str to Tensor
        What the behaviour keeps from round to round.
    proximal_mu : float
        FedProx's mu, >= 0; 0: there is no proximal term.

    Returns
    -------
    trained : Trained
        Loss and examples.
    beside : mapping of str to Tensor
        What the local method sends beside the model: its vector ``[d]``, and what it reports.
    """
    ids = (config.seed, partition_id)
    model, received = local.model, local.received
    data = poisoned_data(
        task,
        model,
        data,
        acting,
        seed=config.seed,
        partition_id=partition_id,
        server_round=server_round,
    )
    data = method.examples(replace(local, data=data))
    local = replace(local, data=data)
    term = method.term(local)
    trained = train_task(
        task,
        model,
        data,
        config,
        torch_generator("local-training", *ids, server_round),
        proximal_mu=proximal_mu,
        term=term,
    )
    with torch.no_grad():
        vector = _trainable_vector(model)
        generator = torch_generator("poison-update", *ids, server_round)
        own = ClientRound(received, vector, server_round, generator, memory)
        poisoned = acting.poison_update(own)
        if poisoned is not vector:
            vector_to_parameters(poisoned.to(vector), _trainable(model))
        change = method.finish(local, term, poisoned.to(vector))
    beside = {} if change is None else {VECTOR_KEY: change}
    return trained, beside | term.report


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@torch.no_grad()
def _trainable_vector(model: nn.Module) -> Tensor:
    return parameters_to_vector(_trainable(model))


@lru_cache(maxsize=4)
def named_task(settings: TaskConfig, facts: str) -> Task:
    """Return the task that a run config names, with what the server says of its data in JSON."""
    return build_task(settings, json.loads(facts))


@lru_cache(maxsize=4)
def model_of(task: Task) -> nn.Module:
    """Return the model that this process trains for a task."""
    # Every weight is overwritten by the server's: the seed does not matter.
    return task.build_model(seed=0)
