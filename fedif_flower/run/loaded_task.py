"""A run's task with its initial model, validation split and test split, loaded and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedif_flower.attacks import Backdoor, Behaviour, build_behaviour, require_data_fit, require_fit
from fedif_flower.devices import select_device
from fedif_flower.errors import ConfigError, DataError, FedIFError
from fedif_flower.local_methods import build_local_method, require_method_fit
from fedif_flower.run.config import RunConfig
from fedif_flower.run.provenance import tensors_hash
from fedif_flower.tasks.batches import read_batches, tensor_pair
from fedif_flower.tasks.images import settled
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.structures import describe, tensors_of
from fedif_flower.tasks.task import Data, Metric, Site, Task
from fedif_flower.valuation import Validation


@dataclass(frozen=True)
class LoadedTask:
    """A task with the initial model and the held-out data of one run.

    Attributes
    ----------
    config : RunConfig
        The run's settings; ``"auto"`` is resolved.
    task : Task
        The task.
    model : torch.nn.Module
        The initial model.
    validation, test : Validation
        The validation and the test split, with the model and the task's loss.
    validation_data : Tensor, mapping, tuple or other data
        The validation split as the task transforms it.
    triggered : Validation, optional
        The test examples with a backdoor's trigger; ``None``: the attack is no backdoor.
    fingerprint : str
        A text that changes whenever the task's data do.
    """

    config: RunConfig
    task: Task
    model: torch.nn.Module
    validation: Validation
    validation_data: Data
    test: Validation
    triggered: Validation | None
    fingerprint: str


def load_task(config: RunConfig, task: Task | None = None) -> LoadedTask:
    """Load a task's model and data, and try them together; ``model = "auto"`` is resolved here.

    Parameters
    ----------
    config : RunConfig
        The run's settings.
    task : Task, optional
        The app's own task; ``None``: the run config names one.

    Raises
    ------
    DataError, ConfigError
        If the data cannot be read, or data, model, loss, attack and number of clients do not fit
        each other.
    """
    config = settled(config.completed())  # Imports first: an error shows before data are loaded.
    if task is not None:
        settings = config.settings_of("task")
        if settings:
            raise ConfigError(f"{', '.join(settings)}: the app's own task takes no settings")
    task = task or build_task(config)
    # A task need not know how many training examples there are.
    if task.num_train and config.num_clients > task.num_train:
        raise ConfigError(
            f"num-clients = {config.num_clients}; allowed: at most the "
            f"{task.num_train} training examples of {task.name!r}"
        )
    # Of any one partition, since only the kind of attack and its settings count here.
    acting = build_behaviour(config, partition_id=0, seed=config.seed)
    require_fit(acting, task, config.attack)
    method = build_local_method(config, task, config.seed)
    site = site_of(config)
    model = task.build_model(config.seed)
    raw_validation = task.load("validation_data", site)
    raw_test = task.load("test_data", site)
    held_out = tensor_pair(raw_validation)
    if held_out is not None:
        require_data_fit(acting, task, *held_out)
    validation_data = task.transformed(raw_validation)
    test_data = task.transformed(raw_test)
    require_method_fit(method, task, validation_data, config.local_method)
    return LoadedTask(
        config=config,
        task=task,
        model=model,
        validation=_held_out(task, model, "validation_data", validation_data, config),
        validation_data=validation_data,
        test=_held_out(task, model, "test_data", test_data, config),
        triggered=triggered_test(acting, task, raw_test, model, config.device),
        fingerprint=fingerprint(config, task),
    )


def triggered_test(
    acting: Behaviour, task: Task, test_data: Data, model: torch.nn.Module, device: str
) -> Validation | None:
    """Return the test split's examples with a backdoor's trigger, labelled with its target.

    A model's accuracy on them is the attack's success rate. ``None``: the run's attack, ``acting``,
    is no backdoor.

    Raises
    ------
    ConfigError
        If the backdoor's target is not one of the classes.
    DataError
        If the test split is not a pair of tensors that the attack can change, or none of its
        examples can have the trigger.
    """
    if not isinstance(acting, Backdoor):
        return None
    pair = tensor_pair(test_data)
    if pair is None:
        raise DataError(f"a backdoor is measured on tensors; test_data is {describe(test_data)}")
    raw_inputs, raw_targets = pair
    require_data_fit(acting, task, raw_inputs, raw_targets)
    scaled, transform = task.in_unit_range(raw_inputs)
    inputs, targets = acting.triggered(scaled, raw_targets, task.num_classes or 0)
    if not len(targets):
        raise DataError("test_data has no example of what the backdoor is about")
    return Validation(model, transform(inputs), targets, loss_fn=task.loss, device=device)


def _held_out(
    task: Task, model: torch.nn.Module, split: str, data: Data, config: RunConfig
) -> Validation:
    """Return one of the server's splits with the model and the task's loss.

    Every error names the task and the split.
    """
    measures = {metric.key: metric.function for metric in task.metrics}
    score = None
    if task.metrics:
        score = _score(task.metrics[0])
    device = select_device(config.device)
    try:
        return Validation(
            model,
            data,
            loss_fn=task.loss,
            batch_loss=task.batch_loss,
            score=score,
            measures=measures,
            device=device,
        )
    except ConfigError as error:
        raise ConfigError(f"task {task.name!r}: {split}: {error}") from error
    except FedIFError as error:
        raise DataError(f"task {task.name!r}: {split}: {error}") from error
    except Exception as error:  # The user's Dataset may raise anything.
        raise DataError(
            f"task {task.name!r}: {split} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _score(metric: Metric) -> Any:
    """Return a metric as a score of which higher is better: where lower is, its negative."""
    if metric.higher_is_better:
        return metric.function
    return lambda *judged: -torch.as_tensor(metric.function(*judged))


def tensors_in(data: Data) -> Iterator[Tensor]:
    """Yield the tensors in data of any form, in their order."""
    if isinstance(data, Tensor | Mapping | tuple):
        yield from tensors_of(data)
    else:
        for batch in read_batches(data, None, 1000):
            yield from tensors_of(batch)


def _held_out_tensors(task: Task, site: Site) -> Iterator[Tensor]:
    """Yield the tensors of a task's held-out data, untransformed."""
    yield from tensors_in(task.load("validation_data", site))
    yield from tensors_in(task.load("test_data", site))


def fingerprint(config: RunConfig, task: Task | None = None) -> str:
    """Return a text that changes whenever a task's data do."""
    task = task or build_task(config)
    if task.fingerprint:
        return task.fingerprint
    # Read anew each time: a task's function may return other data than before.
    return tensors_hash(_held_out_tensors(task, site_of(config)))[:24]


def site_of(config: RunConfig) -> Site:
    """Return the server's site: the seed, and the folder of its data if one is set."""
    if not config.data_dir:
        return Site(config.seed, None)
    return Site(config.seed, Path(config.data_dir).expanduser())
