"""How torch's classification losses take their mean, so that means over batches can be joined."""

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
from fedif_flower.valuation.label_noise import ForwardCorrected

_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)
_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss)
# The modules' own: a subclass with another forward may divide by anything.
_FORWARDS = tuple(kind.forward for kind in _MODULES)


class BatchSize(NamedTuple):
    """How many examples of a batch have a target, and what the mean of their losses divides by."""

    examples: float
    weight: float


@dataclass(frozen=True)
class ClassMean:
    r"""How torch's classification losses take their mean over targets y.

    .. math:: W = \sum_{i:\; y_i \ne y_\mathrm{ignored}} c_{y_i}

    is what they divide the sum of the losses by, with :math:`c_y` the weight of class y (1 without
    class weights) and :math:`y_\mathrm{ignored}` the target that is left out. Where targets are
    probabilities of the classes, each counts 1.

    Parameters
    ----------
    ignored : int
        :math:`y_\mathrm{ignored}`.
    class_weights : Tensor, optional
        ``[classes]``: c.
    smoothing : float
        The label smoothing, in [0, 1].
    """

    ignored: int
    class_weights: Tensor | None = None
    smoothing: float = 0.0

    def counts(self, targets: Tensor) -> Tensor:
        """Return which examples have a target that is not ignored and weighs something, ``[n]``.

        ``targets`` are ``[n, ...]``; the result is bool.
        """
        if self.class_weights is None or targets.is_floating_point():
            return self.has_target(targets)
        return _any_of_each(self._weights(targets) != 0)

    def example_weights(self, targets: Tensor) -> Tensor:
        """Return what each example of targets ``[n, ...]`` adds to W: ``[n]``, float64, on the CPU.

        Where targets are probabilities, each example adds the same, here 1.
        """
        if targets.is_floating_point():
            return torch.ones(len(targets), dtype=torch.float64)
        # Not every device has float64.
        weights = self._weights(targets.cpu()).double()
        return weights.flatten(1).sum(dim=1) if weights.dim() > 1 else weights

    def _weights(self, targets: Tensor) -> Tensor:
        """Return the weight of each integer target's class ``[n, ...]``; 0: it is ignored."""
        is_answered = targets != self.ignored
        if self.class_weights is None:
            return is_answered.float()
        by_class = self.class_weights.detach().to(targets.device)
        # An ignored target, such as -100, is no index: it is clamped, and its weight set to 0.
        target_weights = by_class[targets.long().clamp(0, len(by_class) - 1)]
        return target_weights.where(is_answered, torch.zeros_like(target_weights))

    def has_target(self, targets: Tensor) -> Tensor:
        """Return which examples have a target that is not ignored, whatever its class weighs."""
        return _any_of_each(self._answered(targets))

    def _answered(self, targets: Tensor) -> Tensor:
        """Return which targets are not ignored: ``[n, ...]`` bool, for probabilities ``[n]``."""
        if targets.is_floating_point():
            return torch.ones(len(targets), dtype=torch.bool, device=targets.device)
        return targets != self.ignored

    def size(self, targets: Tensor) -> BatchSize:
        """Return the size of a batch with targets ``[n, ...]``.

        Raises
        ------
        ValuationError
            If a target has no class weight, or labels are smoothed where a class weighs 0.
        """
        if targets.is_floating_point():
            # Probabilities [n, C, ...]: every position of an example has C of them.
            classes = targets.shape[1] if targets.dim() > 1 else 1
            return BatchSize(len(targets), targets.numel() // max(classes, 1))
        self._require_parts_of_a_mean()
        counted = targets != self.ignored
        count = int(counted.sum())
        examples = int(_any_of_each(counted).sum())
        if self.class_weights is None or not count:
            return BatchSize(examples, count)
        labels = targets[counted].cpu().long()
        weights = self.class_weights.detach().cpu().double()
        if not 0 <= int(labels.min()) <= int(labels.max()) < len(weights):
            raise ValuationError(
                f"targets are {int(labels.min())} to {int(labels.max())}; allowed with "
                f"{len(weights)} class weights: 0 to {len(weights) - 1}"
            )
        return BatchSize(examples, float(weights[labels].sum()))

    def _require_parts_of_a_mean(self) -> None:
        """Raise ValuationError if the losses of batches cannot be joined to one mean.

        With label smoothing and a class of weight 0, torch adds the smoothing loss of that class's
        examples, but divides by the weights of the other examples alone: the loss would depend on
        which examples are in a batch together.
        """
        if self.smoothing and self.class_weights is not None and (self.class_weights == 0).any():
            raise ValuationError(
                f"label_smoothing = {self.smoothing:g} beside a class weight of 0; allowed: one of "
                "them (ignore_index leaves a class out too)"
            )


def _any_of_each(counted: Tensor) -> Tensor:
    """Return for each example whether any of its targets counts: ``[n, ...]`` bool to ``[n]``."""
    return counted.flatten(1).any(dim=1) if counted.dim() > 1 else counted


def class_mean(loss_fn: Callable[..., Any]) -> ClassMean | None:
    """Return how a loss takes its mean; ``None`` unless it is one of torch's for classification.

    Parameters
    ----------
    loss_fn : callable
        ``functional.cross_entropy`` or ``nll_loss``, ``functools.partial`` of one, or
        ``nn.CrossEntropyLoss`` or ``nn.NLLLoss``, whose reduction is the mean; or one of these that
        is corrected for wrong labels. For any other loss the result is ``None``.
    """
    if isinstance(loss_fn, ForwardCorrected):
        return class_mean(loss_fn.loss_fn)
    options = _options_of(loss_fn)
    if options is None or options["reduction"] != "mean":
        return None
    # Torch's older arguments for the reduction take precedence over ``reduction``.
    if options.get("size_average") is not None or options.get("reduce") is not None:
        return None
    smoothing = options.get("label_smoothing", 0.0)  # The negative log-likelihood has none.
    return ClassMean(options["ignore_index"], options["weight"], smoothing)


def takes_log_probabilities(loss_fn: Callable[..., Any]) -> bool:
    """Tell whether a loss is one of torch's that take log-probabilities, and normalise no logits.

    These are the negative log-likelihood and the Kullback-Leibler divergence.
    """
    if isinstance(loss_fn, ForwardCorrected):
        return takes_log_probabilities(loss_fn.loss_fn)
    for kind in (nn.NLLLoss, nn.KLDivLoss):
        if isinstance(loss_fn, kind):
            return type(loss_fn).forward is kind.forward
    function = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
    return function in (functional.nll_loss, functional.kl_div)


def _options_of(loss_fn: Callable[..., Any]) -> dict[str, Any] | None:
    """Return the options of torch's classification losses by name; ``None`` for another loss."""
    if isinstance(loss_fn, _MODULES) and type(loss_fn).forward in _FORWARDS:
        return vars(loss_fn) | {"weight": loss_fn.weight}
    function = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
    if function not in _FUNCTIONS:
        return None
    # In the signature of a partial, the arguments that it sets are defaults.
    return {name: option.default for name, option in signature(loss_fn).parameters.items()}
