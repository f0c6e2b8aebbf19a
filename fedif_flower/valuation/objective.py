"""What a model is judged by on one batch: a loss, and accuracy or a score of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.batches import describe, num_examples
from fedif_flower.tasks.task import BatchLoss, LossFunction, ScoreFunction

Metric = Literal["accuracy", "loss", "score"]
METRICS: tuple[Metric, ...] = get_args(Metric)


class Objective(Protocol):
    """Judges a model on one batch."""

    @property
    def call(self) -> str:
        """How the user's loss is called, for errors."""
        ...

    @property
    def metrics(self) -> frozenset[str]:
        """What may be asked for; the first batch decides whether accuracy is defined."""
        ...

    def check(self, batch: Any) -> None:
        """Raise ValuationError if batches of this kind cannot be judged."""
        ...

    def size(self, model: nn.Module, batch: Any) -> int:
        """Return how many examples the batch's mean is over."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss over the batch."""
        ...

    def loss_and_size(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return the mean loss over the batch, and how many examples that is."""
        ...

    def totals(
        self, model: nn.Module, batch: Any, size: int, metrics: Sequence[str]
    ) -> list[Tensor]:
        """Return the sum over the batch's examples of each metric, one of :attr:`metrics`."""
        ...


class PairObjective:
    """``loss_fn(model(inputs), targets)`` on batches ``(inputs, targets)``.

    In a batch of more than two, the last are the targets and the others the model's arguments.
    """

    call = "loss_fn(model(inputs), targets)"

    def __init__(
        self, loss_fn: LossFunction, scores: Mapping[str, ScoreFunction] | None = None
    ) -> None:
        self.loss_fn = loss_fn
        self.scores = scores or {}
        self.metrics: frozenset[str] = frozenset(("loss", "accuracy", *self.scores))

    def check(self, batch: Any) -> None:
        """Raise ValuationError unless the batch has inputs and targets."""
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise ValuationError(
                f"a batch is {describe(batch)}; expected (inputs, targets). "
                "For anything else pass batch_loss(model, batch) -> (mean loss, size)"
            )

    def size(self, model: nn.Module, batch: Any) -> int:  # noqa: ARG002
        """Return the number of targets."""
        return num_examples(batch[-1])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss over the batch."""
        *inputs, targets = batch
        return self.loss_fn(model(*inputs), targets)

    def loss_and_size(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return the mean loss over the batch, and its number of targets."""
        self.check(batch)
        return self.loss(model, batch), self.size(model, batch)

    def totals(
        self, model: nn.Module, batch: Any, size: int, metrics: Sequence[str]
    ) -> list[Tensor]:
        """Return each metric's sum over the batch's examples, from one forward pass."""
        *inputs, targets = batch
        outputs = model(*inputs)
        found: list[Tensor] = []
        for metric in metrics:
            if metric == "accuracy":
                found.append(num_correct(outputs, targets))
            elif metric == "loss":
                found.append((self.loss_fn(outputs, targets) * size).float())
            else:
                found.append(_total(self.scores[metric], (outputs, targets), size))
        return found


class BatchObjective:
    """``batch_loss(model, batch)`` on batches of any kind."""

    call = "batch_loss(model, batch)"

    def __init__(
        self, batch_loss: BatchLoss, scores: Mapping[str, ScoreFunction] | None = None
    ) -> None:
        self.batch_loss = batch_loss
        self.scores = scores or {}
        self.metrics: frozenset[str] = frozenset(("loss", *self.scores))

    def check(self, batch: Any) -> None:
        """Accept everything: only ``batch_loss`` knows what a batch is."""

    def size(self, model: nn.Module, batch: Any) -> int:
        """Return the size that ``batch_loss`` tells."""
        return self.loss_and_size(model, batch)[1]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss over the batch."""
        return self.loss_and_size(model, batch)[0]

    def totals(
        self, model: nn.Module, batch: Any, size: int, metrics: Sequence[str]
    ) -> list[Tensor]:
        """Return each metric's sum over the batch's examples."""
        found: list[Tensor] = []
        for metric in metrics:
            if metric == "loss":
                found.append((self.loss(model, batch) * size).float())
            else:
                found.append(_total(self.scores[metric], (model, batch), size))
        return found

    def loss_and_size(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return what ``batch_loss`` answers."""
        answer = self.batch_loss(model, batch)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ValuationError(
                f"batch_loss returned {describe(answer)}; expected (mean loss, size)"
            )
        loss, size = answer
        return loss, int(size)


def objective_of(
    loss_fn: LossFunction | None,
    batch_loss: BatchLoss | None,
    scores: Mapping[str, ScoreFunction] | None = None,
) -> Objective:
    """Return what judges by ``batch_loss``, else by ``loss_fn``, else by cross-entropy."""
    if batch_loss is not None:
        return BatchObjective(batch_loss, scores)
    return PairObjective(loss_fn or functional.cross_entropy, scores)


def num_correct(outputs: Any, targets: Any) -> Tensor:
    """Return how many answers are right; NaN unless ``[n, classes]`` meet integers ``[n]``."""
    if (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and outputs.shape[1] >= 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    ):
        return (outputs.argmax(dim=1) == targets).sum().float()
    return torch.tensor(torch.nan)


def _total(score: ScoreFunction, arguments: tuple[Any, Any], size: int) -> Tensor:
    """Return a mean score times the batch's size."""
    return torch.as_tensor(score(*arguments), dtype=torch.float32) * size
