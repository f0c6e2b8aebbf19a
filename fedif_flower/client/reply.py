"""A client's reply in a round: data, behaviour and training, from the message to the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

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
    require_data_fit,
    require_fit,
)
from fedif_flower.attacks.returned import require_examples, require_rows, require_vector
from fedif_flower.client.held_out import warn_of_classes
from fedif_flower.client.training import train_task
from fedif_flower.client.trust import agreed, client_site
from fedif_flower.devices import select_device, torch_threads
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.local_methods import (
    Instructions,
    LocalMethod,
    LocalRound,
    LocalTerm,
    TakenIn,
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
    TAKEN_FACTOR_KEY,
    TAKEN_RECORD,
    TAKEN_ROUND_KEY,
    VECTOR_KEY,
    VECTOR_RECORD,
    memory_key,
)
from fedif_flower.messages.models import (
    bfloat16_arrays,
    changed_arrays,
    load_arrays,
    tensor_arrays,
)
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.batches import tensor_pair
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import trainable_parameters
from fedif_flower.tasks.structures import describe
from fedif_flower.tasks.task import Task


def train_round(message: Message, context: Context, task: Task | None = None) -> Message:
    """Train the received model on this node's data, honestly or not, and send it back.

    Parameters
    ----------
    message : Message
        The model's arrays and the round's settings.
    context : Context
        The node's config, and the state that it keeps from round to round.
    task : Task, optional
        The app's own task; ``None``: the run config names one.

    Returns
    -------
    Message
        The reply: the model's arrays, the metrics, and what the local method sends beside.
    """
    settings = cast(ConfigRecord, message.content["config"])
    arrays = cast(ArrayRecord, message.content["arrays"])
    node = NodeConfig.from_node_config(context.node_config)
    config, task = agreed(settings, node, task)
    server_round = cast(int, settings[ROUND_KEY])
    acting = _behaviour_now(config, node, task, settings)
    method = build_local_method(config, task, config.seed)
    started = time.perf_counter()
    run = str(settings[RUN_KEY])
    ids = (config.seed, node.partition_id)
    with (
        torch_threads(config.threads_per_client),
        node_memory(context.state, "attack", run) as attack_memory,
        node_memory(context.state, "method", run) as method_memory,
    ):
        data = task.load("client_data", client_site(config, node))
        require_method_fit(method, task, data, config.local_method)
        warn_of_classes(settings, data, context)
        model = _received_model(task, arrays, config.device)
        loaded = bfloat16_arrays(model)  # Before training, for the change that is sent.
        data = poisoned_data(task, model, data, acting, ids, server_round)
        local = _local_round(message, config, method, model, data, method_memory)
        term = method.term(local)
        generator = torch_generator("local-training", *ids, server_round)
        mu = cast(float, settings.get(PROXIMAL_KEY, 0.0))
        trained = train_task(task, model, local.data, config, generator, proximal_mu=mu, term=term)
        sent = _poison_model(model, arrays, acting, local, ids, attack_memory)
        with torch.no_grad():
            vector = method.finish(local, term, sent)
    metrics = MetricRecord(
        {
            "num-examples": trained.num_examples,
            "train-loss": trained.loss,
            "train-seconds": time.perf_counter() - started,
        }
    )
    content = RecordDict({"metrics": metrics, "arrays": changed_arrays(model, arrays, loaded)})
    beside_model = _arrays_beside_model(vector, term)
    if beside_model:
        content[VECTOR_RECORD] = tensor_arrays(beside_model)
    if isinstance(acting, Colluder):
        content[ACCOMPLICE_KEY] = ConfigRecord({"partition-id": node.partition_id})
    return Message(content=content, reply_to=message)


def _behaviour_now(
    config: ClientConfig, node: NodeConfig, task: Task, settings: ConfigRecord
) -> Behaviour:
    """Return the node's behaviour in this round: an attack may begin later, and pause."""
    acting = behaviour(config, node, task, can_collude=bool(settings.get(COLLUSION_KEY)))
    server_round = cast(int, settings[ROUND_KEY])
    if attacks_now(server_round, config.attack_first_round, config.attack_period):
        return acting
    return Behaviour()


def _received_model(task: Task, arrays: ArrayRecord, device: str) -> nn.Module:
    """Return the model that the server sent, on the device that trains it."""
    model = model_of(task)
    model.to(select_device(device))
    load_arrays(model, arrays)
    return model


def _local_round(
    message: Message,
    config: ClientConfig,
    method: LocalMethod,
    model: nn.Module,
    data: Any,
    memory: dict[str, Tensor],
) -> LocalRound:
    """Return what a local method gets to know of the round, with the examples that it chooses."""
    settings = cast(ConfigRecord, message.content["config"])
    local = LocalRound(
        model=model,
        received=_trainable_vector(model),
        training=config.extract(TrainingConfig),
        memory=memory,
        server_round=cast(int, settings[ROUND_KEY]),
        vector=_server_vector(message, method),
        taken_in=_taken_in(message),
        instructions=cast(Instructions, message.content.get(GUIDE_RECORD, {})),
        data=data,
    )
    return replace(local, data=method.examples(local))


def _server_vector(message: Message, method: LocalMethod) -> Tensor | None:
    """Return the vector ``[d]`` that the server sent beside the model, if the method needs one."""
    if not method.sends_vector:
        return None
    record = cast(ArrayRecord, message.content[VECTOR_RECORD])
    return record.to_torch_state_dict()[VECTOR_KEY]


def _taken_in(message: Message) -> TakenIn | None:
    """Return which vector of this client the server took in last, and how far; ``None``: none."""
    record = message.content.get(TAKEN_RECORD)
    if not isinstance(record, ConfigRecord):
        return None
    return TakenIn(cast(int, record[TAKEN_ROUND_KEY]), cast(float, record[TAKEN_FACTOR_KEY]))


def _arrays_beside_model(vector: Tensor | None, term: LocalTerm) -> dict[str, Tensor]:
    """Return the arrays that a local method sends beside the model, by name."""
    arrays: dict[str, Tensor] = {}
    if vector is not None:
        arrays[VECTOR_KEY] = vector
    return arrays | term.report


@torch.no_grad()
def _poison_model(
    model: nn.Module,
    arrays: ArrayRecord,
    acting: Behaviour,
    local: LocalRound,
    ids: tuple[int, int],
    memory: dict[str, Tensor],
) -> Tensor:
    """Write the parameters that the client's behaviour sends into the model; return them ``[d]``.

    An honest client sends the trained parameters. A behaviour that does not send buffers gets the
    received ones back into the model.
    """
    trained = _trainable_vector(model)
    client_round = ClientRound(
        received=local.received,
        trained=trained,
        server_round=local.server_round,
        generator=torch_generator("poison-update", *ids, local.server_round),
        memory=memory,
    )
    poisoned = acting.poison_update(client_round)
    require_vector(acting, poisoned, trained)
    sent = poisoned.to(trained)
    if not acting.sends_buffers:
        load_arrays(model, arrays)
    if poisoned is not trained or not acting.sends_buffers:
        vector_to_parameters(sent, trainable_parameters(model))
    return sent


def behaviour(
    config: ClientConfig, node: NodeConfig, task: Task, *, can_collude: bool
) -> Behaviour:
    """Return a node's behaviour: its own ``attack`` if set, else the one that the seed assigns.

    Parameters
    ----------
    config : ClientConfig
        The run's settings.
    node : NodeConfig
        The node's config.
    task : Task
        The task.
    can_collude : bool
        Whether attackers can see each other's updates before they are sent.

    Raises
    ------
    ConfigError
        If the attack needs collusion and there is none, or it does not fit the task.
    """
    if node.attack is not None:
        config = config.replace(attack=node.attack)
        acting = build_behaviour(config, partition_id=node.partition_id, seed=config.seed)
    else:
        acting = behaviour_of(
            config,
            partition_id=node.partition_id,
            num_clients=config.num_clients,
            seed=config.seed,
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
    """Return the data that a client trains on, changed by its behaviour and transformed.

    A pair of tensors is moved to the model's device; other data are not moved.

    Parameters
    ----------
    task : Task
        The task. Inputs go through its ``transform`` last.
    model : nn.Module
        The model received. Adversarial samples are made against it.
    data : Data
        The client's data: tensors, or batches of any structure.
    acting : Behaviour
        Changes labels, inputs or whole examples, or nothing.
    ids : tuple of int
        The run's seed and the partition id. They seed all random draws.
    server_round : int
        The round. It seeds the draws that change inputs, too; all other changes are the same in
        every round.

    Raises
    ------
    DataError
        If the behaviour or the task's ``transform`` needs tensors and the data are none, or if the
        behaviour does not fit the tensors.
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
    require_data_fit(acting, task, inputs, targets)
    classes = task.num_classes or 0
    targets = acting.poison_labels(targets, classes, torch_generator("poison-labels", *ids))
    require_rows(acting, "poison_labels", targets, len(inputs))
    targets = targets.to(device)
    scaled, transform = task.in_unit_range(inputs.to(device))
    examples = acting.poison_examples(
        scaled, targets, classes, torch_generator("poison-examples", *ids)
    )
    require_examples(acting, examples)
    scaled, targets = examples
    generator = torch_generator("poison-inputs", *ids, server_round)
    poisoned = acting.poison_inputs(model, scaled, targets, transform, generator)
    require_rows(acting, "poison_inputs", poisoned, len(targets))
    return transform(poisoned), targets


@torch.no_grad()
def _trainable_vector(model: nn.Module) -> Tensor:
    return parameters_to_vector(trainable_parameters(model))


def model_of(task: Task) -> nn.Module:
    """Return the model that this process trains for a task, the same one for all its clients.

    Its weights are those that the last client left; the server's will overwrite them. Buffers that
    are no part of ``state_dict``, which the server does not send, get their first values back.
    """
    own_model = _own_model(task)
    for module, name, value in own_model.unsent:
        setattr(module, name, value.clone().to(next(own_model.model.parameters()).device))
    return own_model.model


class _OwnModel(NamedTuple):
    """A model, and its buffers that are no part of ``state_dict``: module, name and first value."""

    model: nn.Module
    unsent: list[tuple[nn.Module, str, Tensor]]


@lru_cache(maxsize=4)
def _own_model(task: Task) -> _OwnModel:
    """Build a task's model, once in a process."""
    # The seed does not matter, since the server's weights overwrite the model's.
    model = task.build_model(seed=0)
    sent = model.state_dict().keys()
    unsent = []
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            full_name = f"{path}.{name}".removeprefix(".")
            if full_name not in sent:
                unsent.append((module, name, buffer.clone()))
    return _OwnModel(model, unsent)


@contextmanager
def node_memory(state: RecordDict, kind: str, run: str) -> Iterator[dict[str, Tensor]]:
    """Give a client its memory of one run, and store what it holds afterwards.

    If an error is raised inside, the stored memory stays as it was.

    Parameters
    ----------
    state : RecordDict
        The node's state.
    kind : str
        What remembers: ``"attack"`` or ``"method"``.
    run : str
        The run's name: a simulated node may work for several runs at a time.
    """
    key = memory_key(kind, run)
    record = state.get(key)
    memory: dict[str, Tensor] = {}
    if isinstance(record, ArrayRecord):
        memory.update(record.to_torch_state_dict())
    before = dict(memory)
    yield memory
    # Values in a memory are replaced, not written to, so an unchanged object has the same value.
    is_same = memory.keys() == before.keys() and all(memory[k] is before[k] for k in before)
    if not is_same:
        state[key] = tensor_arrays(memory)
