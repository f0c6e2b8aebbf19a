"""Local training on batches of any structure: a plain loop, where there is no faster one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedif_flower.client.flat_sgd import FlatSGD
from fedif_flower.errors import DataError
from fedif_flower.tasks.batches import (
    as_tensors,
    count_examples,
    describe,
    holds_examples,
    map_tensors,
    to_device,
)
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import module_mode, seeded_randomness
from fedif_flower.valuation.objective import Objective


def train_batches(
    model: nn.Module,
    data: Any,
    objective: Objective,
    config: TrainingConfig,
    generator: torch.Generator,
    *,
    proximal_mu: float = 0.0,
) -> tuple[float, float]:
    """Train a model in place by minibatch SGD with momentum, on data of any kind.

    The formula is that of :func:`~fedif_flower.client.training.train_local`. Tensors and a
    Dataset are shuffled anew in each epoch, and cut into batches of ``config.batch_size``; a
    DataLoader, a list of batches or anything else that yields batches is taken as it comes. A
    batch none of whose targets counts for the loss is left out.

    Parameters
    ----------
    model : torch.nn.Module
        On the device to train on; returns to the modes its modules were in.
    data : Tensor, dict or tuple of Tensor, Dataset, DataLoader or iterable of batches
        What can be gone through once for each epoch.
    objective : Objective
        The loss.
    config : TrainingConfig
        Epochs, batch size, learning rate, momentum and precision.
    generator : torch.Generator
        On the CPU: seeds order and dropout.
    proximal_mu : float
        FedProx's factor >= 0.

    Returns
    -------
    loss : float
        Mean over the last epoch's examples.
    num_examples : int
        How many these were; a fraction where ``batch_loss`` tells such sizes.

    Raises
    ------
    DataError
        If there are no examples, or batches can be gone through only once.
    """
    device = next(model.parameters()).device
    seed = int(torch.randint(2**62, (), generator=generator))
    sgd = FlatSGD(
        (parameter for parameter in model.parameters() if parameter.requires_grad),
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        proximal_mu=proximal_mu,
    )
    total, weight, count = torch.zeros((), device=device), 0.0, 0.0
    is_mixed = config.precision == "bf16"
    with seeded_randomness(seed, device), module_mode(model, training=True), sgd:
        for _ in range(config.local_epochs):
            total.zero_()
            weight = count = 0.0
            for batch in map(as_tensors, _epoch(data, config.batch_size, generator)):
                # Before it is moved: to read it on a GPU would be to wait for that.
                objective.check(batch)
                known = objective.known_size(batch)
                if known is not None and not known.weight:
                    continue  # No target counts: the mean would be 0 / 0.
                moved = to_device(batch, device)
                with _mixed(device) if is_mixed else nullcontext():
                    loss, size = objective.loss_and_size(model, moved, known)
                if loss.dim():
                    raise DataError(
                        f"{objective.call} gives {describe(loss)} in training; expected a scalar "
                        "tensor, the mean loss over the batch"
                    )
                if not size.weight:
                    continue
                sgd.before_backward()
                loss.backward()  # type: ignore[no-untyped-call]
                sgd.after_backward()
                total.add_(loss.detach().float(), alpha=size.weight)
                weight += size.weight
                count += size.examples
            if not weight:
                raise DataError(_nothing(data))
    return float(total) / weight, int(count) if count.is_integer() else count


def _mixed(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16)


def _epoch(data: Any, batch_size: int, generator: torch.Generator) -> Iterator[Any]:
    """Yield the batches of one epoch."""
    if isinstance(data, Tensor | Mapping | tuple):
        order = torch.randperm(count_examples(data) or 0, generator=generator)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            yield map_tensors(lambda tensor, rows=rows: tensor[rows], data)  # type: ignore[misc]
    elif holds_examples(data):
        # A stream has no length, and comes in an order of its own.
        known = hasattr(data, "__len__")
        if not known or len(data):
            yield from DataLoader(data, batch_size, shuffle=known, generator=generator)
    elif isinstance(data, Iterable):
        yield from data
    else:
        raise DataError(
            f"client_data is {describe(data)}; allowed: tensors, a Dataset, a DataLoader, batches"
        )


def _nothing(data: Any) -> str:
    """Return why an epoch had no examples."""
    if isinstance(data, Iterator):
        return "client_data gives its batches once; local training needs them in every epoch"
    return "local training needs at least one example; this client has none"
