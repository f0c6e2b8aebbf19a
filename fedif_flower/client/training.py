"""Local training by SGD: one loop, whatever its batches come from."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.client.batch_sources import (
    NO_EXAMPLES,
    BatchesAsTheyCome,
    PreparedBatches,
)
from fedif_flower.client.flat_sgd import FlatSGD, accumulating_linear_layers
from fedif_flower.errors import DataError
from fedif_flower.local_methods import LocalTerm
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import keep_freed_memory, module_mode, seeded_randomness
from fedif_flower.tasks.task import LossFunction
from fedif_flower.valuation.objective import Objective


def train_local(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    config: TrainingConfig,
    generator: torch.Generator,
    *,
    proximal_mu: float = 0.0,
    loss_fn: LossFunction = functional.cross_entropy,
    term: LocalTerm | None = None,
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
    term : LocalTerm, optional
        What a local method adds to each step.

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
    # In bfloat16 the products are of copies of the weights.
    is_plain = config.precision == "float32"
    with accumulating_linear_layers(model) if is_plain else nullcontext():
        loss, _ = _train(model, source, config, generator, proximal_mu, term)
    return loss


def train_batches(
    model: nn.Module,
    data: Any,
    objective: Objective,
    config: TrainingConfig,
    generator: torch.Generator,
    *,
    proximal_mu: float = 0.0,
    term: LocalTerm | None = None,
) -> tuple[float, float]:
    """Train a model in place as :func:`train_local` does, on data of any structure.

    Parameters
    ----------
    model : torch.nn.Module
        On the device to train on; returns to the modes its modules were in.
    data : Tensor, dict or tuple of Tensor, Dataset, DataLoader or iterable of batches
        As :class:`~fedif_flower.client.batch_sources.BatchesAsTheyCome` takes them.
    objective : Objective
        The loss.
    config : TrainingConfig
        Epochs, batch size, learning rate, momentum and precision.
    generator : torch.Generator
        On the CPU: seeds order and dropout.
    proximal_mu : float
        FedProx's factor >= 0.
    term : LocalTerm, optional
        What a local method adds to each step.

    Returns
    -------
    loss : float
        Mean over the last epoch's examples.
    num_examples : float
        How many these were; a fraction where ``batch_loss`` tells such sizes.

    Raises
    ------
    DataError
        If there are no examples, or batches can be gone through only once.
    """
    device = next(model.parameters()).device
    source = BatchesAsTheyCome(data, objective, config.batch_size, device)
    return _train(model, source, config, generator, proximal_mu, term)


def _train(
    model: nn.Module,
    source: PreparedBatches | BatchesAsTheyCome,
    config: TrainingConfig,
    generator: torch.Generator,
    proximal_mu: float,
    term: LocalTerm | None,
) -> tuple[float, float]:
    """Return the last epoch's mean loss, without the term's, and its number of examples."""
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
    return float(total) / weight, int(examples) if examples.is_integer() else examples


def _autocast(device: torch.device) -> torch.autocast:
    # No cache: each weight is cast once per step anyway.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
