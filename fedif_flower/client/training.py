"""Local training by SGD, and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.client.flat_sgd import FlatSGD, accumulating_linear_layers
from fedif_flower.errors import DataError
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import (
    image_format,
    keep_freed_memory,
    module_mode,
    seeded_randomness,
    single_value_norms,
    to_memory_format,
    without_batch_statistics,
)

LossFunction = Callable[[Tensor, Tensor], Tensor]


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
    as it was. A batch norm that would see a single value per channel (a last batch of one example
    and 1x1 maps) has no batch statistics: there it uses its running ones and leaves them alone.

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
    if len(labels) == 0:
        raise DataError("local training needs at least one example; this client has none")
    keep_freed_memory()
    seed = int(torch.randint(2**62, (), generator=generator))
    device = inputs.device
    formatted = to_memory_format(inputs, image_format(model, inputs))
    batches = _ShuffledBatches(formatted, labels, config.batch_size)
    single = single_value_norms(model, inputs[:1]) if batches.smallest == 1 else []
    sgd = FlatSGD(
        (parameter for parameter in model.parameters() if parameter.requires_grad),
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        proximal_mu=proximal_mu,
    )
    is_mixed = config.precision == "bf16"
    total_loss = torch.zeros((), device=device)

    def step(batch: Tensor, targets: Tensor) -> None:
        sgd.before_backward()
        norms = single if len(targets) == 1 else []
        with without_batch_statistics(norms), _autocast(device) if is_mixed else nullcontext():
            loss = loss_fn(model(batch), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.after_backward()
        total_loss.add_(loss.detach(), alpha=len(targets))

    with ExitStack() as stack:
        stack.enter_context(seeded_randomness(seed, device))
        stack.enter_context(module_mode(model, training=True))
        stack.enter_context(sgd)
        if not is_mixed:
            stack.enter_context(accumulating_linear_layers(model))
        for _ in range(config.local_epochs):
            total_loss.zero_()
            for batch, targets in batches.shuffle(generator):
                step(batch, targets)
    return float(total_loss) / len(labels)


def evaluate(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    batch_size: int = 500,
    loss_fn: LossFunction = functional.cross_entropy,
) -> tuple[float, float]:
    """Return the mean loss and the accuracy of a model, in eval mode.

    Parameters
    ----------
    model : torch.nn.Module
        On the inputs' device; returns to the modes its modules were in.
    inputs : Tensor
        ``[n, c, h, w]``, normalised; n >= 1.
    labels : Tensor
        ``[n]`` int64.
    batch_size : int
        Examples per forward pass, >= 1.
    loss_fn : callable
        ``loss_fn(model(inputs), labels)`` -> scalar, the mean over the batch.

    Returns
    -------
    loss : float
        Exact mean over all examples.
    accuracy : float
        Share of the examples whose label has the largest logit, in [0, 1].

    Raises
    ------
    DataError
        If there are no examples.
    """
    if len(labels) == 0:
        raise DataError("evaluation needs at least one example")
    loss = torch.zeros((), device=inputs.device)
    correct = torch.zeros((), dtype=torch.int64, device=inputs.device)
    memory_format = image_format(model, inputs)
    with module_mode(model, training=False), torch.inference_mode():
        for start in range(0, len(labels), batch_size):
            targets = labels[start : start + batch_size]
            logits = model(to_memory_format(inputs[start : start + batch_size], memory_format))
            loss += loss_fn(logits, targets) * len(targets)
            correct += (logits.argmax(1) == targets).sum()
    return float(loss) / len(labels), int(correct) / len(labels)


class _ShuffledBatches:
    """All examples in a new order per epoch: one gather into the same memory, then views of it."""

    def __init__(self, inputs: Tensor, labels: Tensor, batch_size: int) -> None:
        count = len(labels)
        self.size = min(batch_size, count)
        self.smallest = count % self.size or self.size
        self._inputs, self._labels = inputs, labels
        self._shuffled, self._shuffled_labels = torch.empty_like(inputs), torch.empty_like(labels)
        starts = range(0, count, self.size)
        self._batches = [
            (self._shuffled[i : i + self.size], self._shuffled_labels[i : i + self.size])
            for i in starts
        ]

    def shuffle(self, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._labels), generator=generator).to(self._labels.device)
        torch.index_select(_rows(self._inputs), 0, order, out=_rows(self._shuffled))
        torch.index_select(self._labels, 0, order, out=self._shuffled_labels)
        return self._batches


def _rows(examples: Tensor) -> Tensor:
    """View dense examples, in whichever memory format, as ``[n, values]``."""
    length = examples[0].numel()
    return examples.as_strided((len(examples), length), (length, 1))


def _autocast(device: torch.device) -> torch.autocast:
    # No cache: each weight is cast once per step anyway.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
