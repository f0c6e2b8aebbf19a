"""What the mean of a loss over a batch divides by: the batch's weight in the mean over all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.batches import num_examples

_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)
_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss)
# That of a subclass may divide by anything.
_FORWARDS = tuple(kind.forward for kind in _MODULES)


class BatchSize(NamedTuple):
    """How many examples of a batch have a target, and what the mean of their losses divides by."""

    examples: float
    weight: float


class Batch(NamedTuple):
    """Some of the held-out examples, how many, and what the mean of their losses divides by."""

    content: Any
    size: float
    weight: float


@dataclass(frozen=True)
class ClassMean:
    r"""How torch's classification losses take their mean over targets y.

    .. math:: W = \sum_{i:\; y_i \ne y_\mathrm{ignored}} c_{y_i}

    is what they divide by, with :math:`c` the classes' weights, 1 where there are none. Targets
    that are probabilities all count 1.

    Parameters
    ----------
    ignored : int
        The target that is left out.
    class_weights : Tensor, optional
        ``[classes]``.
    """

    ignored: int
    class_weights: Tensor | None = None

    def counts(self, targets: Tensor) -> Tensor:
        """Tell which examples have a target that counts, for targets ``[n, ...]``: ``[n]`` bool."""
        if targets.is_floating_point():
            return torch.ones(len(targets), dtype=torch.bool, device=targets.device)
        counted = targets != self.ignored
        if self.class_weights is not None:
            weights = self.class_weights.to(targets.device)
            labels = targets.long().clamp(0, len(weights) - 1)
            counted &= weights[labels] != 0
        return counted.flatten(1).any(dim=1) if targets.dim() > 1 else counted

    def size(self, targets: Tensor) -> BatchSize:
        """Return the size of a batch with targets ``[n, ...]``.

        Raises
        ------
        ValuationError
            If a target has no class weight.
        """
        if targets.is_floating_point():
            classes = targets.shape[1] if targets.dim() > 1 else 1
            return BatchSize(len(targets), targets.numel() // max(classes, 1))
        counted = targets != self.ignored
        count = int(counted.sum())
        examples = count if targets.dim() == 1 else len(targets)
        if self.class_weights is None or not count:
            return BatchSize(examples, count)
        labels, weights = targets[counted].cpu().long(), self.class_weights.detach().cpu().double()
        if not 0 <= int(labels.min()) <= int(labels.max()) < len(weights):
            raise ValuationError(
                f"targets are {int(labels.min())} to {int(labels.max())}; allowed with "
                f"{len(weights)} class weights: 0 to {len(weights) - 1}"
            )
        return BatchSize(examples, float(weights[labels].sum()))


def class_mean(loss_fn: Callable[..., Any]) -> ClassMean | None:
    """Return how a loss takes its mean, if it is cross-entropy or negative log-likelihood of torch.

    Parameters
    ----------
    loss_fn : callable
        ``functional.cross_entropy`` or ``nll_loss``, ``functools.partial`` of one, or
        ``nn.CrossEntropyLoss`` or ``nn.NLLLoss``, with the mean for reduction. All others give
        ``None``.
    """
    if isinstance(loss_fn, _MODULES) and type(loss_fn).forward in _FORWARDS:
        given: dict[str, Any] = vars(loss_fn) | {"weight": loss_fn.weight}
    elif (loss_fn.func if isinstance(loss_fn, partial) else loss_fn) in _FUNCTIONS:
        given = {name: value.default for name, value in signature(loss_fn).parameters.items()}
    else:
        return None
    outdated = any(given.get(name) is not None for name in ("size_average", "reduce"))
    if given["reduction"] != "mean" or outdated:
        return None
    return ClassMean(given["ignore_index"], given["weight"])


def batch_size(mean: ClassMean | None, targets: Any) -> BatchSize:
    """Return the size of a batch with these targets, for a loss that takes such a mean."""
    if mean is not None and isinstance(targets, Tensor) and targets.dim():
        return mean.size(targets)
    count = num_examples(targets)
    return BatchSize(count, count)
