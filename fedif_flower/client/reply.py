"""One client's side of a round: its data, its behaviour, its training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from fedif_flower.client.training import train_task
from fedif_flower.client.trust import agreed, client_site
from fedif_flower.devices import select_device, torch_threads
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.local_methods import (
    LocalRound,
    Told,
    build_local_method,
    require_method_fit,
)
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import (
    ACCOMPLICE_KEY,
    COLLUSION_KEY,
    GUIDE_RECORD,
    PROXIMAL_KEY,
    ROUND_KEY,
    RUN_KEY,
    VECTOR_KEY,
    VECTOR_RECORD,
    memory_key,
)
from fedif_flower.messages.models import load_arrays, model_arrays, tensor_arrays
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.batches import describe, tensor_pair
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.task import Task


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
    node = NodeConfig.from_node_config(context.node_config)
    config, task = agreed(settings, node, task)
    server_round = cast(int, settings[ROUND_KEY])
    acting = behaviour(config, node, task, can_collude=bool(settings.get(COLLUSION_KEY)))
    if not attacks_now(server_round, config.attack_first_round, config.attack_period):
        acting = Behaviour()
    method = build_local_method(config, task, config.seed)
    sent = cast(ArrayRecord, message.content.get(VECTOR_RECORD))  # If the method needs it.
    started, run = time.perf_counter(), str(settings[RUN_KEY])
    ids = config.seed, node.partition_id
    with (
        torch_threads(config.threads_per_client),
        node_memory(context.state, "attack", run) as memory,
        node_memory(context.state, "method", run) as of_method,
    ):
        data = task.load("client_data", client_site(config, node))
        require_method_fit(method, task, data, config.local_method)
        model = model_of(task)
        model.to(select_device(config.device))
        load_arrays(model, arrays)
        local = LocalRound(
            model=model,
            received=_trainable_vector(model),
            training=config.part(TrainingConfig),
            memory=of_method,
            vector=sent.to_torch_state_dict()[VECTOR_KEY] if method.sends_vector else None,
            told=cast(Told, message.content.get(GUIDE_RECORD, {})),
            data=poisoned_data(task, model, data, acting, ids, server_round),
        )
        local = replace(local, data=method.examples(local))
        term = method.term(local)
        trained = train_task(
            task,
            model,
            local.data,
            config,
            torch_generator("local-training", *ids, server_round),
            proximal_mu=cast(float, settings.get(PROXIMAL_KEY, 0.0)),
            term=term,
        )
        with torch.no_grad():
            vector = _trainable_vector(model)
            generator = torch_generator("poison-update", *ids, server_round)
            own = ClientRound(local.received, vector, server_round, generator, memory)
            poisoned = acting.poison_update(own)
            if poisoned is not vector:
                vector_to_parameters(poisoned.to(vector), _trainable(model))
            change = method.finish(local, term, poisoned.to(vector))
    metrics = MetricRecord(
        {
            "num-examples": trained.num_examples,
            "train-loss": trained.loss,
            "train-seconds": time.perf_counter() - started,
        }
    )
    content = RecordDict({"metrics": metrics, "arrays": model_arrays(model)})
    if beside := ({} if change is None else {VECTOR_KEY: change}) | term.report:
        content[VECTOR_RECORD] = tensor_arrays(beside)
    if isinstance(acting, Colluder):
        content[ACCOMPLICE_KEY] = ConfigRecord({"partition-id": node.partition_id})
    return Message(content=content, reply_to=message)


def behaviour(
    config: ClientConfig, node: NodeConfig, task: Task, *, can_collude: bool
) -> Behaviour:
    """Return what a node does: its own ``attack`` if set, else what the seed assigns to it.

    Raises
    ------
    ConfigError
        If it cannot do that.
    """
    seed, partition_id = config.seed, node.partition_id
    if node.attack is not None:
        config = config.replace(attack=node.attack)
        acting = build_behaviour(config, partition_id=partition_id, seed=seed)
    else:
        acting = behaviour_of(
            config, partition_id=partition_id, num_clients=config.num_clients, seed=seed
        )
    if isinstance(acting, Colluder) and not can_collude:
        raise ConfigError(
            f"attack {config.attack!r} needs to see what the other malicious "
            "clients are about to send, which is possible only in a simulation whose run config "
            "names the attack"
        )
    require_fit(acting, task, config.attack)
    return acting


def poisoned_data(
    task: Task,
    model: nn.Module,
    data: Any,
    acting: Behaviour,
    ids: tuple[int, int],
    server_round: int,
) -> Any:
    """Return a client's data as its model takes them; a pair of tensors on the model's device.

    Parameters
    ----------
    task : Task
        Whose ``transform`` the inputs go through.
    model : nn.Module
        The model received: adversarial samples are made against it, and inputs go to its device.
    data : Data
        What the task gave this client: tensors, or batches of any structure.
    acting : Behaviour
        Changes labels, inputs or whole examples, or nothing.
    ids : tuple of int
        The run's seed and the partition, on which what is drawn depends.
    server_round : int
        The same, of inputs; other data are changed once.

    Raises
    ------
    DataError
        If the behaviour or the task's ``transform`` needs tensors, and the data are none.
    """
    device = next(model.parameters()).device
    data = acting.poison_data(data, torch_generator("poison-data", *ids))
    pair = tensor_pair(data)
    if pair is None:
        if acting.needs_tensors:
            raise DataError(
                f"attack {type(acting).__name__} changes tensors of inputs and labels; the client "
                f"data of task {task.name!r} are {describe(data)}"
            )
        return task.transformed(data)
    inputs, targets = pair
    classes = task.num_classes or 0
    targets = acting.poison_labels(targets, classes, torch_generator("poison-labels", *ids)).to(
        device
    )
    scaled, transform = task.in_unit_range(inputs.to(device))
    scaled, targets = acting.poison_examples(
        scaled, targets, classes, torch_generator("poison-examples", *ids)
    )
    generator = torch_generator("poison-inputs", *ids, server_round)
    return transform(acting.poison_inputs(model, scaled, targets, transform, generator)), targets


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@torch.no_grad()
def _trainable_vector(model: nn.Module) -> Tensor:
    return parameters_to_vector(_trainable(model))


@lru_cache(maxsize=4)
def model_of(task: Task) -> nn.Module:
    """Return the model that this process trains for a task."""
    # Every weight is overwritten by the server's: the seed does not matter.
    return task.build_model(seed=0)


@contextmanager
def node_memory(state: RecordDict, kind: str, run: str) -> Iterator[dict[str, Tensor]]:
    """Lend a client its memory of one run, and keep what it holds afterwards.

    Parameters
    ----------
    state : RecordDict
        The node's state.
    kind : str
        Who remembers: ``"attack"`` or ``"method"``.
    run : str
        The run: a simulated node may work for several at a time.
    """
    key = memory_key(kind, run)
    record = state.get(key)
    memory = dict(record.to_torch_state_dict()) if isinstance(record, ArrayRecord) else {}
    before = dict(memory)
    yield memory
    if memory.keys() != before.keys() or any(memory[k] is not v for k, v in before.items()):
        state[key] = tensor_arrays(memory)
