"""A run's task with its initial model, its validation and its test split, loaded and tried."""

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

    ``validation_data`` are transformed; ``triggered`` are test examples with a backdoor's trigger.
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
        The run.
    task : Task, optional
        An app's own; else the one that the run config names.

    Raises
    ------
    DataError, ConfigError
        If the data cannot be read, or data, model, loss, attack and number of clients do not fit
        each other.
    """
    config = settled(config.completed())  # An import error shows before anything is loaded.
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
    """Return the test split's examples with the trigger, labelled with the target.

    ``None`` where the run's attack is no backdoor. A model's accuracy there is the attack's success
    rate.

    Raises
    ------
    ConfigError
        If the target is no class.
    DataError
        If the test split is no pair of tensors such as the attack needs, or none of its examples
        can have the trigger.
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
    """Return one of the server's splits with the model; whatever is wrong names task and split."""
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
    except Exception as error:  # out of the user's Dataset
        raise DataError(
            f"task {task.name!r}: {split} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _score(metric: Metric) -> Any:
    """Return a metric as coalitions are judged by it: higher is better."""
    if metric.higher_is_better:
        return metric.function
    return lambda *judged: -torch.as_tensor(metric.function(*judged))


def tensors_in(data: Data) -> Iterator[Tensor]:
    """Yield the tensors of data of any form, in their order."""
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
    # Read anew each time: what a function returns may have changed meanwhile.
    return tensors_hash(_held_out_tensors(task, site_of(config)))[:24]


def site_of(config: RunConfig) -> Site:
    """Return the server's site: the seed, and where its data lie."""
    if not config.data_dir:
        return Site(config.seed, None)
    return Site(config.seed, Path(config.data_dir).expanduser())
