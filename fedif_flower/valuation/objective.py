"""What a model is judged by on one batch: a loss, and accuracy or a score of the user's own.

In a mean over many batches, the weight of a batch is what its own mean loss divides by.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.tasks.rows import class_labels, num_examples
from fedif_flower.tasks.structures import describe, tensors_of
from fedif_flower.tasks.task import BatchLoss, LossFunction, ScoreFunction
from fedif_flower.valuation.batch_form import (
    has_examples,
    is_of_two_lengths,
    single_example_error,
    takes_two,
)
from fedif_flower.valuation.class_mean import BatchSize, ClassMean, class_mean
from fedif_flower.valuation.label_noise import ForwardCorrected, is_noise

Metric = Literal["accuracy", "loss", "score"]
METRICS: tuple[Metric, ...] = get_args(Metric)

logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Some of the held-out examples, how many count, and what the mean of their losses divides by.

    ``skipped`` is how many examples before this batch lie in batches that are not kept, since no
    example in them counts.
    """

    content: Any
    size: float
    weight: float
    skipped: int = 0


class Objective:
    """A loss ``batch_loss(model, batch)`` on batches of any kind, and scores.

    ``call`` is how error messages name the loss, ``metrics`` are the names of loss and scores.
    """

    call = "batch_loss(model, batch)"
    class_mean: ClassMean | None = None  # How the loss takes its mean, if that is known.
    ignored: int | None = None  # The target that the loss ignores, if there is one.
    known_metrics: tuple[str, ...] = ("loss",)

    def __init__(
        self, loss_fn: Callable[..., Any], scores: Mapping[str, ScoreFunction] | None = None
    ) -> None:
        self.loss_fn = loss_fn
        self.scores = scores or {}
        self.metrics: frozenset[str] = frozenset((*self.known_metrics, *self.scores))

    def check(self, batch: Any) -> None:
        """Accept any batch: only ``batch_loss`` knows its structure."""

    def check_with(self, model: nn.Module, batch: Any) -> None:
        """Accept any batch: only ``batch_loss`` knows its structure."""

    def known_size(self, batch: Any) -> BatchSize | None:  # noqa: ARG002
        """Return ``None``: ``batch_loss`` returns the size together with the loss."""
        return None

    def counted_size(self, batch: Any) -> BatchSize | None:
        """Return the size of a batch with only those examples that count in the loss, if known.

        It differs from :meth:`known_size` for a loss with class weights: an example whose class
        weighs 0 has a target, but does not count.
        """
        return self.known_size(batch)

    def counts(self, targets: Tensor) -> Tensor:
        """Return which examples of targets ``[n, ...]`` count in the loss: ``[n]`` bool.

        All examples do if it is not known how the loss takes its mean.
        """
        if self.class_mean is None:
            return torch.ones(len(targets), dtype=torch.bool, device=targets.device)
        return self.class_mean.counts(targets)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss over the batch."""
        loss, _ = self.loss_and_size(model, batch)
        return loss

    def loss_and_size(
        self, model: nn.Module, batch: Any, size: BatchSize | None = None
    ) -> tuple[Tensor, BatchSize]:
        """Return the mean loss over the batch, and the batch's size, or ``size`` if given."""
        answer = self.loss_fn(model, batch)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ValuationError(
                f"batch_loss returned {describe(answer)}; expected (mean loss, size)"
            )
        loss = answer[0]
        count = float(answer[1])
        if not (math.isfinite(count) and count >= 0):
            raise ValuationError(f"batch_loss returned the size {count:g}; allowed: finite, >= 0")
        if count.is_integer():
            count = int(count)
        if size is None:
            size = BatchSize(count, count)
        return loss, size

    def batch_with_size(self, model: nn.Module, content: Any, *, tried: bool = True) -> Batch:
        """Return a batch with its size. If the size is not known, the loss is computed to get it.

        With ``tried=False`` the loss is computed in any case, since it has not yet been tried on
        these examples, and must not be NaN. With ``tried=True`` it may be NaN: the model may have
        diverged since, and only the size is needed.

        Raises
        ------
        ValuationError
            If ``tried`` is false and the loss is NaN although the size is not 0.
        """
        size = self.known_size(content) if tried else None
        if size is None:
            loss, size = self.loss_and_size(model, content)
            if not tried and size.weight and bool(loss.isnan().any()):
                raise ValuationError(
                    f"{self.call} gives NaN and the size {size.weight:g} for {describe(content)}; "
                    "expected a number, or the size 0 where no example counts"
                )
        return Batch(content, *size)

    def metric_arguments(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Return what the functions of metrics are given: model and batch."""
        return model, batch

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the function of each metric. A score named "loss" does not replace the loss."""
        return {**self.scores, "loss": self.loss}

    def metric_figures(self, arguments: tuple[Any, Any], metrics: Sequence[str]) -> list[Tensor]:
        """Return each metric's figure; NaN for a metric that is not defined.

        The figure of the accuracy is the number of right answers in the batch.
        """
        return _figures(self.functions(), metrics, arguments)


class PairObjective(Objective):
    """``loss_fn(model(inputs), targets)`` on batches ``(inputs, targets)``.

    In a batch of more than two, the last are the targets and the others the model's arguments.
    """

    call = "loss_fn(model(inputs), targets)"
    known_metrics = ("loss", "accuracy")

    def __init__(
        self, loss_fn: LossFunction, scores: Mapping[str, ScoreFunction] | None = None
    ) -> None:
        super().__init__(loss_fn, scores)
        self.class_mean = class_mean(loss_fn)
        self.ignored = None if self.class_mean is None else self.class_mean.ignored

    def check(self, batch: Any) -> None:
        """Raise ValuationError unless the batch has inputs and targets ``[n, ...]``."""
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise ValuationError(
                f"a batch is {describe(batch)}; expected (inputs, targets). "
                "For anything else pass batch_loss(model, batch) -> (mean loss, size)"
            )
        if not has_examples(batch[-1]):
            raise single_example_error(batch, "its targets have no first dimension")

    def check_with(self, model: nn.Module, batch: Any) -> None:
        """Raise ValuationError if the batch is a single example, as in a list of examples.

        Batches may be laid out in any way. So a batch is refused only if its inputs are a vector
        ``[f]`` of floats, its targets have another length, and the model takes these inputs for one
        example (:func:`~fedif_flower.valuation.batch_form.takes_two`).
        """
        if is_of_two_lengths(batch) and takes_two(model, batch[0]):
            raise single_example_error(batch, "the model takes two of its inputs for two examples")

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss over the batch."""
        *inputs, targets = batch
        loss: Tensor = self.loss_fn(model(*inputs), targets)
        return loss

    def known_size(self, batch: Any) -> BatchSize:
        """Return how many examples have a target that is not ignored, and targets' weights."""
        targets = batch[-1]
        if self.class_mean is not None and _are_labelled(targets):
            return self.class_mean.size(targets)
        count = num_examples(targets)
        return BatchSize(count, count)

    def counted_size(self, batch: Any) -> BatchSize:
        """Return how many examples have a target that weighs something, and targets' weights."""
        size = self.known_size(batch)
        targets = batch[-1]
        if self.class_mean is None or not _are_labelled(targets):
            return size
        return size._replace(examples=int(self.counts(targets).sum()))

    def loss_and_size(
        self, model: nn.Module, batch: Any, size: BatchSize | None = None
    ) -> tuple[Tensor, BatchSize]:
        """Return the mean loss over the batch, and the batch's size, or ``size`` if given."""
        *inputs, targets = batch
        loss = self.loss_fn(model(*inputs), targets)
        if size is None:
            size = self.known_size(batch)
        return loss, size

    def metric_arguments(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Return what the functions of metrics are given: outputs and targets."""
        *inputs, targets = batch
        return model(*inputs), targets

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the function of each metric."""
        right = partial(num_correct, ignored=self.ignored)
        return {**self.scores, "loss": self.loss_fn, "accuracy": right}

    def metric_figures(self, arguments: tuple[Any, Any], metrics: Sequence[str]) -> list[Tensor]:
        """Return each metric's figure; all NaN if one raises because outputs are not finite."""
        try:
            return _figures(self.functions(), metrics, arguments)
        except Exception:
            # Torch's BCELoss, for example, raises on outputs of NaN, which one client can cause.
            outputs = tensors_of(arguments[0])
            if all(bool(output.isfinite().all()) for output in outputs):
                raise
            return _figures({}, metrics, arguments)


def _are_labelled(targets: Any) -> bool:
    """Tell whether targets are a tensor ``[n, ...]``, for which class weights can be looked up."""
    return isinstance(targets, Tensor) and targets.dim() > 0


def objective_of(
    loss_fn: LossFunction | None,
    batch_loss: BatchLoss | None,
    scores: Mapping[str, ScoreFunction] | None = None,
    noise: float | Tensor = 0.0,
) -> Objective:
    """Return the objective with the loss ``batch_loss``, else ``loss_fn``, else cross-entropy.

    Parameters
    ----------
    loss_fn : callable, optional
        ``(outputs, targets)`` -> their mean loss.
    batch_loss : callable, optional
        ``(model, batch)`` -> the mean loss over a batch of any structure and how much it weighs.
    scores : mapping of str to callable, optional
        Metrics beside the loss, by name.
    noise : float or Tensor
        The share of wrong labels for which a cross-entropy is corrected, or the chances of labels
        ``[C, C]`` (see :class:`~fedif_flower.valuation.label_noise.ForwardCorrected`). Other losses
        stay as they are, which the log says.

    Raises
    ------
    ConfigError
        If ``loss_fn`` is a class of losses, such as ``nn.MSELoss`` without its parentheses.
    """
    if isinstance(loss_fn, type):
        name = loss_fn.__name__
        raise ConfigError(f"loss_fn is the class {name}; allowed: {name}()")
    if batch_loss is not None:
        objective = Objective(batch_loss, scores)
    else:
        objective = PairObjective(loss_fn or functional.cross_entropy, scores)
    if not is_noise(noise):
        return objective  # A loss_fn that is already corrected stays corrected.
    return corrected_objective(objective, noise)


def corrected_objective(objective: Objective, noise: float | Tensor) -> Objective:
    """Return the same objective with a loss that is corrected for wrong labels.

    An earlier correction is replaced; with a noise of 0 it is removed. Accuracy and scores stay as
    they are. So does a loss that is not torch's cross-entropy, with a warning in the log. ``noise``
    is as :func:`objective_of` takes it.
    """
    if not isinstance(objective, PairObjective) or objective.class_mean is None:
        if is_noise(noise):
            logger.warning(
                "the loss is not corrected for wrong held-out labels: %s is no cross-entropy of "
                "torch",
                objective.call,
            )
        return objective
    loss_fn = objective.loss_fn
    if isinstance(loss_fn, ForwardCorrected):
        loss_fn = loss_fn.loss_fn
    if is_noise(noise):
        loss_fn = ForwardCorrected(loss_fn, noise)
    if loss_fn is objective.loss_fn:
        return objective
    return PairObjective(loss_fn, objective.scores)


def num_correct(outputs: Any, targets: Any, ignored: int | None) -> Tensor:
    """Return how many outputs ``[n, classes]`` predict their integer target, of ``[n]``.

    It is NaN for outputs and targets of any other form. An output for the target ``ignored`` is not
    right, nor is one that predicts no class (:func:`are_right`).
    """
    labels = class_labels((targets,))
    if labels is None or not isinstance(outputs, Tensor) or outputs.dim() != 2:
        return torch.tensor(torch.nan)
    if outputs.shape[1] < 2:  # One number for each example chooses no class.
        return torch.tensor(torch.nan)
    right = are_right(outputs, labels)
    if ignored is not None and ignored >= 0:  # No output predicts a negative class anyway.
        right &= labels != ignored
    return right.sum().float()


def are_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return which outputs ``[n, classes]`` predict the label ``[n]``: ``[n]`` bool.

    The predicted class has the largest output. If that is infinite or NaN, as in every row with a
    NaN, no class is predicted: else a model that has diverged would be right about class 0.
    """
    largest, answers = outputs.max(dim=1)
    return (answers == labels) & largest.isfinite()


def _figures(
    functions: Mapping[str, Any], metrics: Sequence[str], arguments: tuple[Any, Any]
) -> list[Tensor]:
    """Return each metric's figure; NaN where it has no function."""
    figures = []
    for metric in metrics:
        if metric in functions:
            figures.append(as_figure(functions[metric](*arguments)))
        else:
            figures.append(as_figure(math.nan))
    return figures


def as_figure(value: Any) -> Tensor:
    """Return a user's number as a tensor, a Python float as float64, which keeps its digits."""
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    return torch.as_tensor(value)
