"""Local training of any task: by SGD, in one loop for all kinds of data, or by its own function."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.arithmetic import all_finite
from fedif_flower.client.flat_sgd import FlatSGD
from fedif_flower.client.local_batches import (
    NO_EXAMPLES,
    BatchesAsTheyCome,
    PreparedBatches,
    batches_of,
)
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.local_methods import LocalTerm
from fedif_flower.tasks.batches import count_dropped, count_examples
from fedif_flower.tasks.config import Precision, TrainingConfig
from fedif_flower.tasks.dtypes import naming_dtypes
from fedif_flower.tasks.modules import (
    keep_freed_memory,
    module_mode,
    seeded_randomness,
    trainable_parameters,
)
from fedif_flower.tasks.not_finite import read_not_finite
from fedif_flower.tasks.structures import describe
from fedif_flower.tasks.task import LossFunction, Task
from fedif_flower.valuation.class_mean import BatchSize

logger = logging.getLogger(__name__)


class Trained(NamedTuple):
    """What training reports beside the model.

    Attributes
    ----------
    loss : float
        The mean over the last epoch's examples, weighted by their classes if the loss has class
        weights.
    num_examples : float
        How many examples count in the loss: their targets are not ignored, and their class weights
        are not 0. It may be a fraction if ``batch_loss`` returns such sizes.
    """

    loss: float
    num_examples: float


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

    with w the trainable parameters, :math:`w_{t-1}` their values at the start and v the momentum.

    The result depends on the arguments alone. Dropout is seeded from ``generator`` too, by its
    first draw; one ``randperm`` for each epoch follows. The process's random state is the same
    afterwards.

    Parameters
    ----------
    model : torch.nn.Module
        On the inputs' device. Its modules end in the modes (train or eval) in which they began.
    inputs : Tensor
        ``[n, c, h, w]``, normalised; n >= 1.
    labels : Tensor
        ``[n]`` int64.
    config : TrainingConfig
        E, B, :math:`\eta`, :math:`\beta` and the precision.
    generator : torch.Generator
        On the CPU. All random draws follow from it.
    proximal_mu : float
        FedProx's :math:`\mu` >= 0.
    loss_fn : callable
        ``loss_fn(model(inputs), labels)`` -> scalar, the mean over the batch.

    Returns
    -------
    float
        Mean over the last epoch's examples of the loss that each had when its batch came.

    Raises
    ------
    DataError
        If there are no examples, or training led to parameters that are NaN or infinite.

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

    Parameters
    ----------
    model : torch.nn.Module
        On the batches' device.
    source : PreparedBatches or BatchesAsTheyCome
        The batches of each epoch, and the loss.
    config : TrainingConfig
        Epochs, learning rate, momentum and precision.
    generator : torch.Generator
        On the CPU. All random draws follow from it.
    proximal_mu : float
        FedProx's factor >= 0.
    term : LocalTerm, optional
        What a local method adds to each step.

    Returns
    -------
    Trained
        The loss, without what the term adds to it, and the number of examples.

    Raises
    ------
    DataError
        If no example counts, or training led to parameters that are NaN or infinite.
    """
    keep_freed_memory()
    term = term or LocalTerm()
    # The first draw, before those of the epochs: it seeds dropout.
    seed = int(torch.randint(2**62, (), generator=generator))
    sgd = FlatSGD(
        trainable_parameters(model),
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        proximal_mu=proximal_mu + term.proximal_mu,
        correction=term.gradient,
    )
    device = next(model.parameters()).device
    with seeded_randomness(seed, device), module_mode(model, training=True), sgd, term:
        for number in range(1, config.local_epochs + 1):
            epoch = _Epoch(device)
            for batch in source.epoch(generator):
                with naming_dtypes(model, batch), _arithmetic(config.precision, device):
                    loss, size = source.loss(model, batch)
                    if not size.weight:
                        continue
                    added = term.loss()
                objective = loss if added is None else loss + added
                sgd.before_backward()
                objective.backward()  # type: ignore[no-untyped-call]
                sgd.after_backward()
                term.steps += 1
                epoch.add(loss.detach(), size)
            if not epoch.weight:
                raise DataError(_why_none_counted(source.data))
            if not (bool(epoch.total.isfinite()) and _has_numbers(model)):
                _refuse_divergence(model, source.data, epoch.losses, number)
    return epoch.trained()


class _Epoch:
    """The losses of an epoch's steps, and their mean over its examples.

    Attributes
    ----------
    losses : list of Tensor
        The loss of each step, a scalar.
    total : Tensor
        The sum of the losses, each times its batch's weight. It stays on the device during the
        epoch, because reading a number from a GPU means waiting for it.
    weight : float
        The sum of the batches' weights.
    examples : float
        How many of the batches' examples count.
    """

    def __init__(self, device: torch.device) -> None:
        self.losses: list[Tensor] = []
        self.total = torch.zeros((), device=device)
        self.weight = 0.0
        self.examples = 0.0

    def add(self, loss: Tensor, size: BatchSize) -> None:
        """Add a step's mean loss over a batch, and the batch's size."""
        self.losses.append(loss)
        self.total.add_(loss.float(), alpha=size.weight)
        self.weight += size.weight
        self.examples += size.examples

    def trained(self) -> Trained:
        """Return the mean loss over the epoch, and the number of examples that count in it."""
        num_examples = self.examples
        if num_examples.is_integer():
            num_examples = int(num_examples)
        return Trained(float(self.total) / self.weight, num_examples)


def _why_none_counted(data: Any) -> str:
    """Return words that say why no example of a client's data counted in an epoch."""
    dropped = count_dropped(data)
    if not dropped:
        return f"{NO_EXAMPLES} that counts"
    return (
        f"local training needs at least one example; this client's {dropped} fill no batch, and "
        "its DataLoader has drop_last=True"
    )


def _has_numbers(model: nn.Module) -> bool:
    """Return whether all trainable parameters are finite."""
    return all(all_finite(parameter.detach()) for parameter in trainable_parameters(model))


def _refuse_divergence(model: nn.Module, data: Any, losses: Sequence[Tensor], epoch: int) -> None:
    """Log why an epoch diverged; raise DataError if the model is not finite after it.

    If only a loss was NaN or infinite, the warning in the log is all.

    Parameters
    ----------
    model : torch.nn.Module
        The model after the epoch.
    data : Data
        The data that it was trained on.
    losses : sequence of Tensor
        The losses of the epoch's steps.
    epoch : int
        The number of the epoch, from 1.
    """
    words = f"a step of epoch {epoch} led to parameters that are NaN or infinite"
    for step, loss in enumerate(losses, start=1):
        if not bool(loss.isfinite()):
            words = f"the training loss was {float(loss):g} at step {step} of epoch {epoch}"
            break
    words += f"; {_words_of_not_finite(data)}"
    logger.warning("%s", words)
    if not _has_numbers(model):
        raise DataError(words)


def _words_of_not_finite(data: Any) -> str:
    """Return words for how many examples have NaN or Inf, or advice if none has."""
    nan, infinite = read_not_finite(data)
    if nan:
        return f"NaN in {nan} of its examples"
    if infinite:
        return f"infinite numbers in {infinite} of its examples"
    return "all its examples are finite: try a lower learning-rate"


def _arithmetic(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which losses are computed at a precision."""
    if precision == "float32":
        return nullcontext()
    # No cache of cast weights: each weight is cast only once in a step anyway.
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
    """Train a model in place on a task's data, by the task's ``train`` if it has one, else by SGD.

    Parameters
    ----------
    task : Task
        The task: its loss, or its own ``train``.
    model : torch.nn.Module
        On the device to train on.
    data : tensors, Dataset, DataLoader or iterable of batches
        The data, after the task's ``transform``. A pair of tensors must lie on the model's device.
        Examples whose targets the loss ignores are left out.
    config : TrainingConfig
        Epochs, batch size, learning rate, momentum and precision.
    generator : torch.Generator
        On the CPU. All random draws follow from it.
    proximal_mu : float
        FedProx's factor >= 0.
    term : LocalTerm, optional
        What a local method adds to each step. The task's own ``train`` does not use it.

    Returns
    -------
    Trained
        The training loss, and the number of examples that count.

    Raises
    ------
    DataError
        If there are no examples, training led to parameters that are NaN or infinite, or the
        task's ``train`` returns no number.
    ConfigError
        If ``proximal_mu`` is not 0 and the task has its own ``train``, which adds no such term.
    """
    if task.train is not None:
        if proximal_mu:
            raise ConfigError(
                f"FedProx adds a term to the local loss, but task {task.name!r} trains by a "
                "function of its own: choose another strategy"
            )
        return _train_as_told(task, model, data, config, generator)
    source = batches_of(task, model, data, config.batch_size, term or LocalTerm())
    return train_on(model, source, config, generator, proximal_mu, term)


def _train_as_told(
    task: Task, model: nn.Module, data: Any, config: TrainingConfig, generator: torch.Generator
) -> Trained:
    """Train by the task's own ``train``; see :func:`train_task`."""
    assert task.train is not None  # The caller has checked.
    count = count_examples(data)
    if count is None:
        raise DataError(f"client_data is {describe(data)}; with train() it needs a length")
    if count == 0:
        raise DataError(NO_EXAMPLES)
    num_examples = count - count_dropped(data)
    if num_examples == 0:
        raise DataError(_why_none_counted(data))
    device = next(model.parameters()).device
    seed = int(torch.randint(2**62, (), generator=generator))
    with seeded_randomness(seed, device), module_mode(model, training=True):
        loss = task.train(model, data, config.extract(TrainingConfig))
    if not _is_scalar(loss):
        raise DataError(
            f"task {task.name!r}: train() returned {describe(loss)}; expected a number, the mean "
            "training loss"
        )
    training_loss = float(loss)
    if not _has_numbers(model):
        words = f"train() of task {task.name!r} led to parameters that are NaN or infinite"
        words += f", with a training loss of {training_loss:g}; {_words_of_not_finite(data)}"
        raise DataError(words)
    return Trained(training_loss, num_examples)


def _is_scalar(loss: Any) -> bool:
    """Return whether a loss is one number, alone or in a tensor."""
    if isinstance(loss, Tensor):
        return loss.numel() == 1
    return isinstance(loss, Real)  # NumPy's numbers are Real too.
