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
from fedif_flower.tasks.batches import count_examples, describe, map_tensors, to_device
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
) -> tuple[float, int]:
    """Train a model in place by minibatch SGD with momentum, on data of any kind.

    The formula is that of :func:`~fedif_flower.client.training.train_local`. Tensors and a
    Dataset are shuffled anew in each epoch, and cut into batches of ``config.batch_size``; a
    DataLoader, or anything else that yields batches, is taken as it comes.

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
        How many these were.

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
    total, count = torch.zeros((), device=device), 0
    is_mixed = config.precision == "bf16"
    with seeded_randomness(seed, device), module_mode(model, training=True), sgd:
        for _ in range(config.local_epochs):
            total.zero_()
            count = 0
            for batch in _epoch(data, config.batch_size, generator):
                moved = to_device(batch, device)
                sgd.before_backward()
                with _mixed(device) if is_mixed else nullcontext():
                    loss, size = objective.loss_and_size(model, moved)
                if loss.dim():
                    raise DataError(
                        f"{objective.call} gives {describe(loss)} in training; expected a scalar "
                        "tensor, the mean loss over the batch"
                    )
                loss.backward()  # type: ignore[no-untyped-call]
                sgd.after_backward()
                total.add_(loss.detach().float(), alpha=size)
                count += size
            if not count:
                raise DataError(_nothing(data))
    return float(total) / count, count


def _mixed(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16)


def _epoch(data: Any, batch_size: int, generator: torch.Generator) -> Iterator[Any]:
    """Yield the batches of one epoch."""
    if isinstance(data, Tensor | Mapping | tuple):
        order = torch.randperm(count_examples(data) or 0, generator=generator)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            yield map_tensors(lambda tensor, rows=rows: tensor[rows], data)  # type: ignore[misc]
    elif isinstance(data, DataLoader):
        yield from data
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        if len(data):
            yield from DataLoader(data, batch_size, shuffle=True, generator=generator)
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
