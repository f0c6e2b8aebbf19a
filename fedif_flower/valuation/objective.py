"""What a model is judged by on one batch: a loss, and accuracy or a score of the user's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.batches import describe, tensors_of
from fedif_flower.tasks.task import BatchLoss, LossFunction, ScoreFunction
from fedif_flower.valuation.batch_weight import BatchSize, batch_size, class_mean

Metric = Literal["accuracy", "loss", "score"]
METRICS: tuple[Metric, ...] = get_args(Metric)


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
        self.class_mean = class_mean(loss_fn)

    @property
    def ignored(self) -> int | None:
        """The target that stands for no answer, if there is one."""
        return None if self.class_mean is None else self.class_mean.ignored

    def check(self, batch: Any) -> None:
        """Raise ValuationError unless the batch has inputs and targets ``[n, ...]``."""
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise ValuationError(
                f"a batch is {describe(batch)}; expected (inputs, targets). "
                "For anything else pass batch_loss(model, batch) -> (mean loss, size)"
            )
        tensors = tensors_of(batch[-1])
        if not any(t.dim() for t in tensors) if tensors else not hasattr(batch[-1], "__len__"):
            raise ValuationError(
                f"a batch is {describe(batch)}, which is a single example: its targets have no "
                "first dimension; allowed: batches, such as a DataLoader with a batch_size makes "
                "of a list of examples"
            )

    def known_size(self, batch: Any) -> BatchSize:
        """Return the number of targets that are not ignored, and the sum of their weights."""
        return batch_size(self.class_mean, batch[-1])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss over the batch."""
        *inputs, targets = batch
        return self.loss_fn(model(*inputs), targets)

    def loss_and_size(
        self, model: nn.Module, batch: Any, size: BatchSize | None = None
    ) -> tuple[Tensor, BatchSize]:
        """Return the mean loss over the batch, and its size unless that is known."""
        return self.loss(model, batch), size or self.known_size(batch)

    def figures(self, model: nn.Module, batch: Any, metrics: Sequence[str]) -> list[Tensor]:
        """Return each metric's mean over the batch, right answers' number, from one pass."""
        *inputs, targets = batch
        outputs = model(*inputs)
        found: list[Tensor] = []
        for metric in metrics:
            if metric == "accuracy":
                found.append(num_correct(outputs, targets, self.ignored))
            elif metric == "loss":
                found.append(self.loss_fn(outputs, targets))
            else:
                found.append(torch.as_tensor(self.scores[metric](outputs, targets)))
        return found


class BatchObjective:
    """``batch_loss(model, batch)`` on batches of any kind."""

    call = "batch_loss(model, batch)"
    ignored = None

    def __init__(
        self, batch_loss: BatchLoss, scores: Mapping[str, ScoreFunction] | None = None
    ) -> None:
        self.batch_loss = batch_loss
        self.scores = scores or {}
        self.metrics: frozenset[str] = frozenset(("loss", *self.scores))

    def check(self, batch: Any) -> None:
        """Accept everything: only ``batch_loss`` knows what a batch is."""

    def known_size(self, batch: Any) -> None:
        """Return nothing: ``batch_loss`` tells it with the loss."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss over the batch."""
        return self.loss_and_size(model, batch)[0]

    def figures(self, model: nn.Module, batch: Any, metrics: Sequence[str]) -> list[Tensor]:
        """Return each metric's mean over the batch."""
        return [
            self.loss(model, batch)
            if metric == "loss"
            else torch.as_tensor(self.scores[metric](model, batch))
            for metric in metrics
        ]

    def loss_and_size(
        self,
        model: nn.Module,
        batch: Any,
        size: BatchSize | None = None,  # noqa: ARG002 (it is never known)
    ) -> tuple[Tensor, BatchSize]:
        """Return what ``batch_loss`` answers."""
        answer = self.batch_loss(model, batch)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ValuationError(
                f"batch_loss returned {describe(answer)}; expected (mean loss, size)"
            )
        loss, told = answer
        count = float(told)
        if not (math.isfinite(count) and count >= 0):
            raise ValuationError(f"batch_loss returned the size {count:g}; allowed: finite, >= 0")
        count = int(count) if count.is_integer() else count
        return loss, BatchSize(count, count)


Objective: TypeAlias = PairObjective | BatchObjective
"""Judges a model on one batch; ``call`` says how the user's loss is called, for errors."""


def objective_of(
    loss_fn: LossFunction | None,
    batch_loss: BatchLoss | None,
    scores: Mapping[str, ScoreFunction] | None = None,
) -> Objective:
    """Return what judges by ``batch_loss``, else by ``loss_fn``, else by cross-entropy.

    Parameters
    ----------
    loss_fn : callable, optional
        ``(outputs, targets)`` -> their mean loss.
    batch_loss : callable, optional
        ``(model, batch)`` -> the mean loss over a batch of any structure and how much it weighs.
    scores : mapping of str to callable, optional
        Metrics beside the loss, by name.
    """
    if batch_loss is not None:
        return BatchObjective(batch_loss, scores)
    return PairObjective(loss_fn or functional.cross_entropy, scores)


def num_correct(outputs: Any, targets: Any, ignored: int | None = None) -> Tensor:
    """Return how many answers are right; NaN unless ``[n, classes]`` meet integers ``[n]``.

    No answer to the target ``ignored`` is right.
    """
    if (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and outputs.shape[1] >= 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    ):
        right = outputs.argmax(dim=1) == targets
        if ignored is not None and ignored >= 0:  # No answer is negative.
            right &= targets != ignored
        return right.sum().float()
    return torch.tensor(torch.nan)
