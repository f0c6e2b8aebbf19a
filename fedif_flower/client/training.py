"""Local training of any task: by SGD, one loop whatever its batches come from, or its own way."""

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
    """What a training reports beside the model.

    ``loss`` is the mean over the last epoch's examples, by the weights of their classes if the loss
    has such; ``num_examples`` are those that the loss counts: not ignored, of no weight 0.
    """

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
        Of each step, a scalar.
    total : Tensor
        The sum of the losses, each times what its batch weighs; it stays on the device, since to
        read a number from there is to wait for it.
    weight, examples : float
        What the batches weigh, and how many of their examples count.
    """

    def __init__(self, device: torch.device) -> None:
        self.losses: list[Tensor] = []
        self.total = torch.zeros((), device=device)
        self.weight = 0.0
        self.examples = 0.0

    def add(self, loss: Tensor, size: BatchSize) -> None:
        """Add a step's mean loss over a batch of a size."""
        self.losses.append(loss)
        self.total.add_(loss.float(), alpha=size.weight)
        self.weight += size.weight
        self.examples += size.examples

    def trained(self) -> Trained:
        """Return the mean loss, and of how many examples it is."""
        num_examples = self.examples
        if num_examples.is_integer():
            num_examples = int(num_examples)
        return Trained(float(self.total) / self.weight, num_examples)


def _why_none_counted(data: Any) -> str:
    """Return why an epoch over a client's data counted no example."""
    dropped = count_dropped(data)
    if not dropped:
        return f"{NO_EXAMPLES} that counts"
    return (
        f"local training needs at least one example; this client's {dropped} fill no batch, and "
        "its DataLoader has drop_last=True"
    )


def _has_numbers(model: nn.Module) -> bool:
    """Tell whether every trainable parameter is finite; so does a model that has none."""
    return all(all_finite(parameter.detach()) for parameter in trainable_parameters(model))


def _refuse_divergence(model: nn.Module, data: Any, losses: Sequence[Tensor], epoch: int) -> None:
    """Raise DataError where an epoch led to a model that is none; warn of a loss that is none.

    Parameters
    ----------
    model : torch.nn.Module
        After the epoch.
    data : Data
        What it was trained on.
    losses : sequence of Tensor
        Of the epoch's steps.
    epoch : int
        From 1.
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
    """Return whether data have examples that are no numbers."""
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
    source = batches_of(task, model, data, config.batch_size, term or LocalTerm())
    return train_on(model, source, config, generator, proximal_mu, term)


def _train_as_told(
    task: Task, model: nn.Module, data: Any, config: TrainingConfig, generator: torch.Generator
) -> Trained:
    """Train by the task's own function."""
    assert task.train is not None  # the caller has looked
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
        loss = task.train(model, data, config.part(TrainingConfig))
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
    """Tell whether a loss is one number, in a tensor or by itself."""
    if isinstance(loss, Tensor):
        return loss.numel() == 1
    return isinstance(loss, Real)  # So is a number of NumPy's, as the mean of an array.
