"""Local training of any task: by its own function, on tensors in memory, or on any batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedif_flower.client.training import train_batches, train_local
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.local_methods import LocalTerm
from fedif_flower.tasks.batches import count_examples, describe, tensor_pair
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import module_mode, seeded_randomness
from fedif_flower.tasks.task import LossFunction, Task
from fedif_flower.valuation.batch_weight import class_mean
from fedif_flower.valuation.objective import objective_of


class Trained(NamedTuple):
    """What a training reports beside the model."""

    loss: float
    num_examples: float


def train_task(
    task: Task,
    model: nn.Module,
    data: Any,
    config: TrainingConfig,
    generator: torch.Generator,
    *,
    proximal_mu: float = 0.0,
    term: LocalTerm | None = None,
) -> Trained:
    """Train a model in place on data of a task, transformed already.

    Parameters
    ----------
    task : Task
        Says how, and by which loss.
    model : torch.nn.Module
        On the device to train on.
    data : tensors, Dataset, DataLoader or iterable of batches
        What to train on. A pair of tensors must lie on the model's device. Examples whose target
        the loss ignores are left out.
    config : TrainingConfig
        Epochs, batch size, learning rate, momentum and precision.
    generator : torch.Generator
        On the CPU: everything drawn at random follows from it.
    proximal_mu : float
        FedProx's factor >= 0.
    term : LocalTerm, optional
        What a local method adds to each step; training of the task's own has none.

    Raises
    ------
    DataError
        If there are no examples, or the task's ``train`` returns no number.
    ConfigError
        If there is a proximal term, which training of the task's own does not have.
    """
    if task.train is not None:
        return _train_as_told(task, model, data, config, generator, proximal_mu)
    pair = tensor_pair(data)
    own_loss = None if term is None else term.loss_fn
    if pair is not None and task.batch_loss is None:
        inputs, targets = _counted(task.pair_loss, *pair)
        loss = train_local(
            *(model, inputs, targets, config, generator),
            proximal_mu=proximal_mu,
            loss_fn=own_loss or task.pair_loss,
            term=term,
        )
        return Trained(loss, len(targets))
    objective = objective_of(own_loss or task.loss, task.batch_loss)
    return Trained(
        *train_batches(
            *(model, data, objective, config, generator), proximal_mu=proximal_mu, term=term
        )
    )


def _counted(loss_fn: LossFunction, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out examples whose target the loss ignores: a batch of them alone has no mean."""
    mean = class_mean(loss_fn)
    if mean is None or bool((counted := mean.counts(targets)).all()):
        return inputs, targets
    return inputs[counted], targets[counted]


def _train_as_told(
    task: Task,
    model: nn.Module,
    data: Any,
    config: TrainingConfig,
    generator: torch.Generator,
    proximal_mu: float,
) -> Trained:
    """Train by the task's own function."""
    assert task.train is not None  # the caller has looked
    if proximal_mu:
        raise ConfigError(
            f"FedProx adds a term to the local loss, but task {task.name!r} trains by a function "
            "of its own: choose another strategy"
        )
    count = count_examples(data)
    if not count:
        raise DataError(
            "local training needs at least one example; this client has none"
            if count == 0
            else f"client_data is {describe(data)}; with train() it needs a length"
        )
    device = next(model.parameters()).device
    seed = int(torch.randint(2**62, (), generator=generator))
    with seeded_randomness(seed, device), module_mode(model, training=True):
        loss = task.train(model, data, config.part(TrainingConfig))
    if not isinstance(loss, int | float | Tensor) or (
        isinstance(loss, Tensor) and loss.numel() != 1
    ):
        raise DataError(
            f"task {task.name!r}: train() returned {describe(loss)}; expected a number, the mean "
            "training loss"
        )
    return Trained(float(loss), count)
