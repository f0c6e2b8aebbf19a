"""Before a run: whether this member can take part in it, check by check."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedif_flower.client.held_out import labels_in, warn_of_classes
from fedif_flower.client.local_batches import NO_EXAMPLES
from fedif_flower.client.training import train_task
from fedif_flower.client.trust import agreed, client_site
from fedif_flower.devices import select_device, torch_threads
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.local_methods import build_local_method, require_method_fit
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import read_config
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import QUESTION, RECORD, Finding, Status, to_record
from fedif_flower.messages.records import records_of
from fedif_flower.tasks.batches import count_examples, read_batches
from fedif_flower.tasks.not_finite import count_not_finite
from fedif_flower.tasks.task import Data, Task
from fedif_flower.valuation.class_mean import class_mean
from fedif_flower.valuation.objective import objective_of

Checks = Callable[[NodeConfig, ConfigRecord], Sequence[Finding]]
# Bytes: below the first a member cannot take part, below the second it is warned.
LEAST_SPACE = 100 * 2**20
LITTLE_SPACE = 2**30


def describe(
    message: Message,
    context: Context,
    task: Task | None = None,
    checks: Sequence[Checks] = (),
) -> Message:
    """Answer the server's question who this node is and, where it asks, whether it can take part.

    Parameters
    ----------
    message : Message
        Empty, or with a run's instructions.
    context : Context
        With the node's config.
    task : Task, optional
        The app's own; ``None``: the run config names one.
    checks : sequence of callable
        What parts of the client check beside.
    """
    node = NodeConfig.from_node_config(context.node_config)
    answer = ConfigRecord({"partition-id": node.partition_id, "attack": node.attack or ""})
    content = RecordDict({"node": answer})
    settings = records_of(message.content, ConfigRecord).get(QUESTION)
    if settings:
        findings = check_member(
            read_config(settings),
            node,
            lambda: agreed(settings, node, task)[1],
            lambda data: warn_of_classes(settings, data, context),
        )
        for check in checks:
            findings += check(node, settings)
        content[RECORD] = to_record(findings, time.time())
    return Message(content, reply_to=message)


def check_member(
    config: ClientConfig,
    node: NodeConfig,
    task: Callable[[], Task],
    look: Callable[[Data], object] | None = None,
) -> list[Finding]:
    """Return what there is to say of a member's data, training and disk.

    Parameters
    ----------
    config : ClientConfig
        The run's.
    node : NodeConfig
        The member's.
    task : callable
        Returns what is learned; an error of it is a finding.
    look : callable, optional
        Called with the member's data, if they are what the task can learn from.
    """
    # What the first check has loaded, for the second.
    loaded: list[tuple[Task, Data]] = []

    def load_data() -> str | Finding:
        loaded_task = task()
        data = loaded_task.load("client_data", client_site(config, node))
        method = build_local_method(config, loaded_task, config.seed)
        require_method_fit(method, loaded_task, data, config.local_method)
        words = data_words(loaded_task, data)
        if look is not None:
            look(data)
        loaded.append((loaded_task, data))
        return words

    def try_training() -> str | Finding:
        if not loaded:
            return Finding("training", Status.WARNING, "not tried: there are no data")
        loaded_task, data = loaded[0]
        with torch_threads(config.threads_per_client):
            return train_one_batch(loaded_task, data, config)

    return [
        tried("data", load_data),
        tried("training", try_training),
        tried("disk", lambda: check_disk(node)),
    ]


def tried(check: str, function: Callable[[], str | Finding]) -> Finding:
    """Return what a check finds: its own finding, its words, or its error."""
    try:
        answer = function()
    except (ConfigError, DataError) as error:
        return Finding(check, Status.FAILED, str(error))
    except Exception as error:  # a task's own code can raise anything
        return Finding(check, Status.FAILED, f"{type(error).__name__}: {error}")
    if isinstance(answer, Finding):
        return answer
    return Finding(check, Status.OK, answer)


def data_words(task: Task, data: Data) -> str | Finding:
    """Return what a member's data are; of those that lie in memory, whether all are numbers.

    Raises
    ------
    DataError
        If there are none, a label is of no class of the task, or there are NaN that no
        ``transform`` of the task may fill in.
    """
    count = count_examples(data)
    if count == 0:
        raise DataError("there are no examples")
    _require_classes(task, data)
    words = "batches" if count is None else f"{count} examples"
    nan, infinite = count_not_finite(data) or (0, 0)
    if nan and task.transform is None:
        raise DataError(f"{words}, NaN in {nan} of them: fill it in, or leave these out")
    if infinite:
        return Finding("data", Status.WARNING, f"{words}, infinite numbers in {infinite} of them")
    return words


def _require_classes(task: Task, data: Data) -> None:
    """Raise DataError for a label of data in memory that is of no class.

    A cross-entropy says which label it does not count; of another loss a label below 0 may be one.
    """
    labels = labels_in(data)
    if labels is None or not task.num_classes:
        return
    is_outside = labels >= task.num_classes
    mean = class_mean(task.pair_loss)
    if mean is not None:
        is_outside = (is_outside | (labels < 0)) & (labels != mean.ignored)
    outside = labels[is_outside]
    if len(outside):
        label = int(outside.max())
        raise DataError(f"there is a label {label}; the classes are 0 to {task.num_classes - 1}")


def train_one_batch(task: Task, data: Data, config: ClientConfig) -> str:
    """Train a new model on one batch; return that it went well, and nothing of the data.

    Raises
    ------
    DataError
        If the loss is not finite, or examples are not behind the task's ``transform``.
    """
    model = task.build_model(seed=0)
    if task.train is not None:
        return "not tried: the task trains by a function of its own"
    model.to(select_device(config.device))
    transformed = task.transformed(data)
    nan, _ = count_not_finite(transformed) or (0, 0)
    if nan:
        raise DataError(f"behind transform of task {task.name!r} there are NaN in {nan} examples")
    batch = _first_batch(task, transformed, config.batch_size)
    once = config.replace(local_epochs=1)
    loss = train_task(task, model, [batch], once, torch.Generator().manual_seed(0)).loss
    if not math.isfinite(loss):
        raise DataError(f"the loss of one batch is {loss}")
    return "of one batch"


def _first_batch(task: Task, data: Data, batch_size: int) -> Any:
    """Return the first batch of which the task's loss counts an example.

    Raises
    ------
    DataError
        If there is none.
    """
    objective = objective_of(task.loss, task.batch_loss)
    for batch in read_batches(data, None, batch_size):
        objective.check(batch)
        size = objective.counted_size(batch)
        if size is None or size.weight:
            return batch
    raise DataError(f"{NO_EXAMPLES} that counts")


def check_disk(node: NodeConfig) -> str | Finding:
    """Return how much space is left where the node writes.

    Raises
    ------
    ConfigError
        If it is nearly none, or the folder cannot be written to.
    """
    folder = Path(node.statement_dir or "").expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    words = f"{free / 2**20:,.0f} MiB free"
    is_read_only = bool(node.statement_dir) and not os.access(existing, os.W_OK)
    if free < LEAST_SPACE or is_read_only:
        raise ConfigError(f"{folder}: {words}, or it cannot be written to")
    if free < LITTLE_SPACE:
        return Finding("disk", Status.WARNING, words)
    return words
