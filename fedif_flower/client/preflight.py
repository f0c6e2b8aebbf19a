"""The member's side of the preflight: checks, before a run, whether it can take part."""

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
# Free space in bytes. With less than the first a member cannot take part; with less than the second
# it gets a warning.
LEAST_SPACE = 100 * 2**20
LITTLE_SPACE = 2**30


def describe(
    message: Message,
    context: Context,
    task: Task | None = None,
    checks: Sequence[Checks] = (),
) -> Message:
    """Answer the server's question who this node is and, if asked, whether it can take part.

    Parameters
    ----------
    message : Message
        The question. It is empty, or has a run's instructions if the server asks for the checks.
    context : Context
        The node's context, with its config.
    task : Task, optional
        The app's own task; ``None``: the run config names one.
    checks : sequence of callable
        Further checks, by parts of the client.
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
    """Return the findings on a member's data, training and disk.

    Parameters
    ----------
    config : ClientConfig
        The run's settings.
    node : NodeConfig
        The member's config.
    task : callable
        ``task()`` returns the task. An error that it raises becomes a finding on the data.
    look : callable, optional
        Called with the member's data, if they are fit for the task.
    """
    # The first check puts what it has loaded here, for the second.
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
    """Run a check; return its finding, or one made of the words it returns or the error it raises.

    Parameters
    ----------
    check : str
        The check's name.
    function : callable
        ``function()`` runs the check. If it returns words, all is well.
    """
    try:
        answer = function()
    except (ConfigError, DataError) as error:
        return Finding(check, Status.FAILED, str(error))
    except Exception as error:  # A task's own code can raise anything.
        return Finding(check, Status.FAILED, f"{type(error).__name__}: {error}")
    if isinstance(answer, Finding):
        return answer
    return Finding(check, Status.OK, answer)


def data_words(task: Task, data: Data) -> str | Finding:
    """Return words for how many examples there are, or a warning if some hold infinite numbers.

    Labels and numbers are looked at only in data that lie in memory.

    Raises
    ------
    DataError
        If there are no examples, a label is none of the task's classes, or there are NaN and the
        task has no ``transform`` that could replace them.
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
    """Raise DataError if data in memory have a label that is none of the task's classes.

    A cross-entropy names the label that it ignores, so any other label below 0 is an error. What a
    label below 0 means to another loss is not known, so there it passes.
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
    """Train a new model on one batch, and return words that say so.

    A task with its own ``train`` is not tried. The words go to the server, so they say nothing
    about the data.

    Raises
    ------
    DataError
        If the loss is not finite, the data hold NaN after the task's ``transform``, or no example
        counts in the loss.
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
    return "one batch trained"


def _first_batch(task: Task, data: Data, batch_size: int) -> Any:
    """Return the first batch with an example that counts in the task's loss.

    Raises
    ------
    DataError
        If there is no such batch.
    """
    objective = objective_of(task.loss, task.batch_loss)
    for batch in read_batches(data, None, batch_size):
        objective.check(batch)
        size = objective.counted_size(batch)
        if size is None or size.weight:
            return batch
    raise DataError(f"{NO_EXAMPLES} that counts")


def check_disk(node: NodeConfig) -> str | Finding:
    """Return how much space is left in the node's ``statement-dir``, or in the working folder.

    Little space is a warning.

    Raises
    ------
    ConfigError
        If ``statement-dir`` cannot be written to, or there is almost no space.
    """
    folder = Path(node.statement_dir or "").expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    words = f"{free / 2**20:,.0f} MiB free"
    if node.statement_dir and not os.access(existing, os.W_OK):
        raise ConfigError(
            f"statement-dir = {node.statement_dir!r}: {existing} cannot be written to"
        )
    if free < LEAST_SPACE:
        raise ConfigError(f"{folder}: {words}; allowed: at least {LEAST_SPACE / 2**20:,.0f} MiB")
    if free < LITTLE_SPACE:
        return Finding("disk", Status.WARNING, words)
    return words
