"""Local training of any task: by SGD, one loop whatever its batches come from, or its own way."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.client.batch_sources import (
    NO_EXAMPLES,
    BatchesAsTheyCome,
    PreparedBatches,
)
from fedif_flower.client.flat_sgd import FlatSGD
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.local_methods import LocalTerm
from fedif_flower.tasks.batches import count_examples, describe, tensor_pair
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import keep_freed_memory, module_mode, seeded_randomness
from fedif_flower.tasks.task import LossFunction, Task
from fedif_flower.valuation.objective import class_mean, objective_of


class Trained(NamedTuple):
    """What a training reports beside the model: the mean loss over the last epoch's examples."""

    loss: float
    num_examples: float  # A fraction where ``batch_loss`` tells such sizes.


def train_local(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    config: TrainingConfig,
    generator: torch.Generator,
    *,
    proximal_mu: float = 0.0,
    loss_fn: LossFunction = functional.cross_entropy,
) -> float:
    r"""Train a model in place by minibatch SGD with momentum, and return its training loss.

    Each epoch visits every example once, in an order drawn from ``generator``, in batches of B
    (the last one may be smaller). With the batch's mean loss :math:`\ell`:

    .. math::
        v \leftarrow \beta v + \nabla \ell(w) + \mu (w - w_{t-1}), \qquad w \leftarrow w - \eta v

    The result is a function of the arguments alone: dropout too is seeded from ``generator``
    (its first draw; one ``randperm`` per epoch follows), and the process's random state is left
    as it was.

    Parameters
    ----------
    model : torch.nn.Module
        On the inputs' device; returns to the modes its modules were in.
    inputs : Tensor
        ``[n, c, h, w]``, normalised; n >= 1.
    labels : Tensor
        ``[n]`` int64.
    config : TrainingConfig
        E, B, :math:`\eta`, :math:`\beta` and the precision.
    generator : torch.Generator
        On the CPU.
    proximal_mu : float
        FedProx's :math:`\mu` >= 0.
    loss_fn : callable
        ``loss_fn(model(inputs), labels)`` -> scalar, the mean over the batch.

    Returns
    -------
    float
        Mean over the last epoch's examples of the loss each had when its batch came.

    Raises
    ------
    DataError
        If there are no examples.

    References
    ----------
    McMahan et al., 2017 (FedAvg, algorithm 1); Li et al., 2020 (FedProx, equation 2).
    """
    source = PreparedBatches(model, inputs, labels, config.batch_size, loss_fn)
    return train_on(model, source, config, generator, proximal_mu).loss


def train_on(
    model: nn.Module,
    source: PreparedBatches | BatchesAsTheyCome,
    config: TrainingConfig,
    generator: torch.Generator,
    proximal_mu: float = 0.0,
    term: LocalTerm | None = None,
) -> Trained:
    """Train a model in place as :func:`train_local` does, on batches of any source.

    Its loss is without the term's.
    """
    keep_freed_memory()
    term = term or LocalTerm()
    seed = int(torch.randint(2**62, (), generator=generator))
    sgd = FlatSGD(
        (parameter for parameter in model.parameters() if parameter.requires_grad),
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        proximal_mu=proximal_mu + term.proximal_mu,
        correction=term.gradient,
    )
    device = next(model.parameters()).device
    is_mixed = config.precision == "bf16"
    total, weight, examples = torch.zeros((), device=device), 0.0, 0.0
    with seeded_randomness(seed, device), module_mode(model, training=True), sgd, term:
        for _ in range(config.local_epochs):
            total.zero_()
            weight = examples = 0.0
            for batch in source.epoch(generator):
                with _autocast(device) if is_mixed else nullcontext():
                    loss, size = source.loss(model, batch)
                    added = term.loss() if size.weight else None
                if not size.weight:
                    continue
                sgd.before_backward()
                (loss if added is None else loss + added).backward()  # type: ignore[no-untyped-call]
                sgd.after_backward()
                term.steps += 1
                total.add_(loss.detach().float(), alpha=size.weight)
                weight += size.weight
                examples += size.examples
            if not weight:
                raise DataError(NO_EXAMPLES)
    return Trained(float(total) / weight, int(examples) if examples.is_integer() else examples)


def _autocast(device: torch.device) -> torch.autocast:
    # No cache: each weight is cast once per step anyway.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


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
        if proximal_mu:
            raise ConfigError(
                f"FedProx adds a term to the local loss, but task {task.name!r} trains by a "
                "function of its own: choose another strategy"
            )
        return _train_as_told(task, model, data, config, generator)
    pair, own_loss = tensor_pair(data), None if term is None else term.loss_fn
    source: PreparedBatches | BatchesAsTheyCome
    if pair is not None and task.batch_loss is None:
        inputs, targets = _counted(task.pair_loss, *pair)
        loss_fn = own_loss or task.pair_loss
        source = PreparedBatches(model, inputs, targets, config.batch_size, loss_fn)
    else:
        objective = objective_of(own_loss or task.loss, task.batch_loss)
        device = next(model.parameters()).device
        source = BatchesAsTheyCome(data, objective, config.batch_size, device)
    return train_on(model, source, config, generator, proximal_mu, term)


def _counted(loss_fn: LossFunction, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out examples whose target the loss ignores: a batch of them alone has no mean."""
    mean = class_mean(loss_fn)
    if mean is None or bool((counted := mean.counts(targets)).all()):
        return inputs, targets
    return inputs[counted], targets[counted]


def _train_as_told(
    task: Task, model: nn.Module, data: Any, config: TrainingConfig, generator: torch.Generator
) -> Trained:
    """Train by the task's own function."""
    assert task.train is not None  # the caller has looked
    count = count_examples(data)
    if not count:
        words = f"client_data is {describe(data)}; with train() it needs a length"
        raise DataError(NO_EXAMPLES if count == 0 else words)
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
