"""The server's validation set: a model's gradient, loss, accuracy and score on it."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedif_flower.arithmetic import all_finite
from fedif_flower.devices import select_device
from fedif_flower.errors import DivergedError, ValuationError, is_count, require
from fedif_flower.tasks.batches import count_dropped, read_batches
from fedif_flower.tasks.modules import keep_freed_memory, same_buffers
from fedif_flower.tasks.structures import to_device
from fedif_flower.tasks.task import (
    RESERVED_METRICS,
    BatchLoss,
    Data,
    LossFunction,
    ScoreFunction,
)
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.label_noise import ForwardCorrected, is_noise
from fedif_flower.valuation.objective import corrected_objective, objective_of
from fedif_flower.valuation.parallel import Buffers, Judge, LossAndGradient, Passes, SharedGradients
from fedif_flower.valuation.subsets import AnyGenerator, draw_batches
from fedif_flower.valuation.trial import try_batches

logger = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """Mean loss, share of right answers, and the user's score; NaN for one that is not defined."""

    loss: float
    accuracy: float
    score: float = math.nan


class Validation(Passes):
    r"""A held-out data set D' with the model and the loss that judge a parameter vector on it.

    .. math:: \ell(w, D') = \frac{1}{|D'|} \sum_{(x, y) \in D'} \ell(f_w(x), y)

    with :math:`f_w` the model with parameters w; or, where targets have weights :math:`c_y` or are
    ignored (:math:`c_y = 0`), :math:`\sum c_y\, \ell(f_w(x), y) / \sum c_y`. The model is copied to
    ``device`` and kept in eval mode, and the data stay on ``device`` between calls. Model, loss,
    scores and data are tried together at construction, by forward passes over all examples and
    backward passes on a few, which leave no trace. Losses are added up in float64 (float32 on MPS),
    gradients at least in float32. Each batch's own loss has the digits that ``loss_fn`` gives it:
    about three for a model in half precision.

    Equal parameters always have the same loss. If a model, loss or score draws at random even in
    eval mode, as a variational autoencoder does, then each batch has the same draws in every pass.
    They are seeded in torch's, NumPy's and Python's own generators, whose states are restored
    afterwards. Such passes use one thread, and run at once instead of in the background.

    Parameters
    ----------
    model : torch.nn.Module
        Any module; its parameters with ``requires_grad`` form the vector [d], in the order of
        ``model.named_parameters()``. The module itself is left alone.
    inputs : Tensor, dict or tuple of Tensor, Dataset, DataLoader or iterable of batches
        Tensors or NumPy arrays ``[n, ...]``; a Dataset of examples; or what yields batches
        ``(inputs, targets)``, each of any structure, as a DataLoader or a list of batches does.
        For a batch ``(a, b, targets)`` the model is called with ``(a, b)``. Tensors that lie on
        ``device`` are not copied: they have to stay as they are.
    targets : Tensor, dict or tuple of Tensor, optional
        ``[n, ...]``; left out where ``inputs`` brings its own.
    loss_fn : callable, optional
        ``loss_fn(model(inputs), targets)`` -> scalar, the *mean* over the batch. Default:
        cross-entropy, for outputs of two classes or more; a single output needs another loss, such
        as ``nn.BCEWithLogitsLoss()``. Class weights and ignored targets are taken into account for
        torch's ``cross_entropy`` and ``nll_loss``, as functions, partials or modules. Any other
        loss must be the mean over the examples, which is tried at construction. On the CPU several
        threads may call it at once, each with a replica of the model and batches of its own.
    batch_loss : callable, optional
        In place of ``loss_fn``, for batches of any kind: ``batch_loss(model, batch)`` -> the mean
        loss, a scalar, and what this mean divides by: the batch's size, or a sum of weights. The
        sizes are read at construction. A loss whose value for a whole batch is not the mean of
        those for its parts, such as a loss of pairs, is warned of: results then depend on the batch
        size.
    score : callable, optional
        Judges coalitions where targets are no classes; higher is better. ``score(outputs,
        targets)`` -> number is called once for all examples, in the order of the data, with tensors
        on the CPU that are at least float32; examples whose target is ignored are left out. So it
        may be an AUC or an F1 score. In two cases it has to be a mean over the examples of a batch,
        and is called for each batch: ``score(model, batch)`` beside ``batch_loss``, and
        ``score(outputs, targets)`` if outputs and targets of all examples take more than 256 MiB,
        or are no tensors ``[n, ...]`` that can be joined. That it is a mean is then tried.
    measures : mapping of str to callable, optional
        Further figures by name, each computed as ``score`` is, for :meth:`measure`. No name may be
        "loss", "accuracy", "score" or "contradicted".
    noise : float or Tensor
        :math:`\varepsilon`, the share of wrong labels for which a cross-entropy is corrected, >= 0
        and < (C - 1) / C, or the chances of each label by class, ``[C, C]`` (see
        :class:`~fedif_flower.valuation.label_noise.ForwardCorrected`). Loss and gradient are
        corrected, accuracy and scores are not. Another loss stays as it is, with a warning in the
        log. :func:`~fedif_flower.valuation.examination.vet` estimates the noise.
    device : str
        ``"auto"`` (CUDA, then MPS, then CPU) or a torch device.
    batch_size : int, optional
        Examples per pass, >= 1. It changes memory and speed, but results only by rounding (and the
        draws of a model that draws at random). A model whose output for an example depends on the
        others in its batch is warned of. Default: 100 on the CPU, 1,000 elsewhere.

    Attributes
    ----------
    metrics : frozenset of str
        Those of "loss", "accuracy" (for ``loss_fn`` with outputs ``[n, classes]`` and integer
        targets ``[n]``), "score" and the names of ``measures`` that are defined here.
    num_examples : float
        How many examples of D' have a target that is not ignored. Only ``batch_loss`` can make it a
        number that is not whole.
    total_weight : float
        What the mean loss over D' divides by.

    Raises
    ------
    ValuationError
        If there are no examples, lengths differ, the model has nothing to train, or model, loss
        and data do not fit each other; if results of model or loss depend on earlier passes in eval
        mode; if a score is not finite at the given model.
    ConfigError
        If ``loss_fn`` is no mean over the examples, or a score that has to be a mean is none; if
        the loss is torch's ``nll_loss`` or ``kl_div`` and the model gives no log-probabilities; if
        ``batch_loss`` gives a sum in place of the mean; if a loss or score compares each output
        with every target, as with shapes ``[n, 1]`` and ``[n]``; if the gradient of the loss is
        exactly 0 at the given model, or the loss is the same at very different parameters; if
        ``noise`` lies outside its range.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Data,
        targets: Data | None = None,
        *,
        loss_fn: LossFunction | None = None,
        batch_loss: BatchLoss | None = None,
        score: ScoreFunction | None = None,
        measures: Mapping[str, ScoreFunction] | None = None,
        noise: float | Tensor = 0.0,
        device: str | torch.device = "auto",
        batch_size: int | None = None,
    ) -> None:
        self.device = select_device(device)
        if batch_size is None:
            batch_size = 100 if self.device.type == "cpu" else 1000
        self.batch_size = batch_size
        if not is_count(batch_size, 1):
            raise ValuationError(f"batch_size is {batch_size}; allowed: an integer >= 1")
        if loss_fn is not None and batch_loss is not None:
            raise ValuationError("loss_fn and batch_loss are both given; allowed: one of them")
        scores = _all_scores(score, {} if measures is None else measures)
        objective = objective_of(loss_fn, batch_loss, scores, noise)
        dropped = count_dropped(inputs)
        if dropped:
            logger.warning(
                "examples left out at the end of the held-out set: %d; they fill no batch, and "
                "its DataLoader has drop_last=True",
                dropped,
            )
        if self.device.type == "cpu":
            keep_freed_memory()
        flat = FlatModel(model, self.device)
        with same_buffers(flat.module):
            read = read_batches(inputs, targets, self.batch_size)
            batches = (to_device(batch, self.device) for batch in read)
            tried = try_batches(flat, objective, batches)
        super().__init__(Judge(flat, objective, whole=tried.whole, is_random=tried.is_random))
        self.metrics = tried.metrics
        self._noise_interval: tuple[float, float] | None = None
        self.hold(tried.batches)

    def __repr__(self) -> str:
        """Return the model's class, the numbers of parameters and examples, metrics and device."""
        model = type(self.judge.model.module).__name__
        return (
            f"Validation({model} with {self.num_params:,} parameters, "
            f"{self.num_examples:,} examples, {', '.join(sorted(self.metrics))}, {self.device})"
        )

    @property
    def noise(self) -> float | Tensor:
        """The share of wrong labels that the loss is corrected for, or the chances ``[C, C]``."""
        loss_fn = self.judge.objective.loss_fn
        return loss_fn.noise if isinstance(loss_fn, ForwardCorrected) else 0.0

    @property
    def noise_interval(self) -> tuple[float, float] | None:
        """The shares of wrong labels between which the true one lies; ``None``: not known."""
        return self._noise_interval

    def with_noise(
        self, noise: float | Tensor, interval: tuple[float, float] | None = None
    ) -> Validation:
        """Return the same data and model with a loss that is corrected for wrong labels.

        Parameters
        ----------
        noise : float or Tensor
            As the constructor takes it. If the loss stays as it is, this validation itself is
            returned.
        interval : tuple of float, optional
            The shares between which the true one lies, low < high. At both ends
            :class:`~fedif_flower.attribution.callback.PathAttribution` measures contributions, too;
            gradient and losses are those of ``noise`` alone. Chances by class have no interval: it
            is left out for them.

        Raises
        ------
        ConfigError
            If a share lies outside its range, or the interval has no width.
        """
        objective = corrected_objective(self.judge.objective, noise)
        if objective is self.judge.objective:
            return self
        other = copy.copy(self)
        vars(other).pop("gradients", None)  # This object's gradients are those of its own loss.
        old = self.judge
        judge = Judge(old.model.replica(), objective, whole=old.whole, is_random=old.is_random)
        Passes.__init__(other, judge)
        other.loss(other.params())  # A noise outside its range raises here.
        other._noise_interval = None
        is_share = not isinstance(noise, Tensor) and is_noise(noise)
        if interval is not None and is_share:
            low, high = interval
            require(0 <= low < high, "interval", interval, "0 <= low < high")
            self.with_noise(high)  # So does the end of the interval.
            other._noise_interval = (low, high)
        return other

    @property
    def parameter_names(self) -> list[str]:
        """The trainable parameters, in the order of the vector [d]."""
        return self.judge.model.parameter_names

    @property
    def tied_names(self) -> dict[str, str]:
        """The further names of arrays that the model has under several names, with the first."""
        return self.judge.model.tied_names

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of each parameter and buffer, by every name that it has."""
        return {name: list(value.shape) for name, value in self.judge.model.state.items()}

    @property
    def num_params(self) -> int:
        """Length d of the parameter vector."""
        return self.judge.model.params.numel()

    def params(self) -> Tensor:
        """Return the parameters ``[d]`` that were last used; at first, the given model's own."""
        return self.judge.model.params.detach().clone()

    def gradient(self, params: Tensor, buffers: Buffers = None) -> Tensor:
        r"""Return the gradient :math:`\nabla \ell(w, D')`, the exact mean over all examples.

        Parameters
        ----------
        params : Tensor
            ``[d]``: w.
        buffers : mapping of str to Tensor, optional
            Buffers and frozen parameters by name; those left out stay as they were.

        Returns
        -------
        Tensor
            ``[d]``, on this validation's device.

        Raises
        ------
        DivergedError
            If the gradient is not finite.
        """
        return self.loss_and_gradient(params, buffers).checked().gradient

    def noise_gradients(
        self, noises: Sequence[float], params: Tensor, buffers: Buffers = None
    ) -> list[Tensor]:
        r"""Return the gradient ``[d]`` for each of several shares of wrong labels.

        Losses corrected for different shares have the same outputs, and differ only in how much
        each example counts (see :class:`~fedif_flower.valuation.label_noise.ForwardCorrected`). So
        one forward pass serves them all, and each takes a backward pass.

        Parameters
        ----------
        noises : sequence of float
            The shares :math:`\varepsilon`, >= 0 and < (C - 1) / C.
        params, buffers
            As :meth:`gradient` takes them.

        Raises
        ------
        ValuationError
            If the loss is not corrected.
        DivergedError
            If a gradient is not finite.
        """
        loss_fn = self.judge.objective.loss_fn
        if not isinstance(loss_fn, ForwardCorrected):
            raise ValuationError("the loss is not corrected for wrong labels: it has one gradient")
        losses = [ForwardCorrected(loss_fn.loss_fn, noise) for noise in noises]
        parts = self._go_through(
            params,
            buffers,
            lambda judge, batches: judge.differentiate_by(losses, batches, self.total_weight),
            ("loss",),
        )
        gradients = parts[0]
        for part_gradients in parts[1:]:
            for gradient, more in zip(gradients, part_gradients, strict=True):
                gradient += more
        if not all(all_finite(gradient) for gradient in gradients):
            raise DivergedError("the validation gradient is not finite: the model has diverged")
        return gradients

    @cached_property
    def gradients(self) -> SharedGradients:
        """Computes :meth:`gradient` in the background, once for all that need it."""
        return SharedGradients(self.loss_and_gradient, in_background=not self.judge.is_random)

    def loss_and_gradient(self, params: Tensor, buffers: Buffers = None) -> LossAndGradient:
        """Return loss and gradient ``[d]`` at ``params`` [d], from one pass; both may be NaN."""
        parts = self._go_through(
            params,
            buffers,
            lambda judge, batches: judge.differentiate(batches, self.total_weight),
            ("loss",),
        )
        gradient = parts[0].gradient
        for part in parts[1:]:
            gradient += part.gradient
        return LossAndGradient(sum(part.loss for part in parts), gradient)

    def evaluate(self, params: Tensor, buffers: Buffers = None) -> Evaluation:
        """Return loss, accuracy and score at ``params`` [d], from one pass over the data."""
        return Evaluation(*self.means(params, buffers, ("loss", "accuracy", "score")).tolist())

    def measure(self, params: Tensor, buffers: Buffers = None) -> dict[str, float]:
        """Return loss, accuracy if it is defined, and ``measures`` at ``params`` [d], by name."""
        names = sorted(self.metrics - {"score"})
        return dict(zip(names, self.means(params, buffers, names).tolist(), strict=True))

    def loss(self, params: Tensor, buffers: Buffers = None) -> float:
        """Return the mean loss at ``params`` [d]."""
        return float(self.means(params, buffers, ("loss",)))

    def accuracy(self, params: Tensor, buffers: Buffers = None) -> float:
        """Return the share of right answers at ``params`` [d], in [0, 1]."""
        return float(self.means(params, buffers, ("accuracy",)))

    def means(self, params: Tensor, buffers: Buffers, metrics: Sequence[str]) -> Tensor:
        """Return metrics at ``params`` [d]: the mean loss, the share of right answers, scores.

        Returns
        -------
        Tensor
            ``[len(metrics)]``, float64 (float32 on MPS), on this validation's device, which may
            still be computing. NaN for a metric that is not defined.
        """
        parts = self._go_through(
            params,
            buffers,
            lambda judge, batches: judge.sum(batches, metrics),
            self.metrics.intersection(metrics),
        )
        return self._means_of(torch.stack(parts).sum(dim=0), metrics)

    def mean_by(
        self, judge: Judge, params: Tensor, buffers: Mapping[str, Tensor], metric: str
    ) -> Tensor:
        """Return one of the :meth:`means`, ``[1]``, by a judge that the caller has for itself.

        The judge comes from :meth:`side_by_side` or :meth:`alone`.
        """
        judge.model.load(params, buffers)
        return self._means_of(judge.sum(self.batches, [metric]), [metric])

    def _means_of(self, sums: Tensor, metrics: Sequence[str]) -> Tensor:
        """Return the means of metrics from their sums over all batches."""
        return sums / sums.new_tensor([self._divisor(metric) for metric in metrics])

    def _divisor(self, metric: str) -> float:
        """Return what a metric's sum over all batches is divided by."""
        if metric == "loss":
            return self.total_weight
        return 1.0 if metric in self.judge.whole else self.num_examples

    def sample(self, count: int, generator: AnyGenerator) -> Validation:
        """Return this validation on a random part of D', stratified by class.

        Parameters
        ----------
        count : int
            How many examples, >= 1. If D' has no more, if its batches cannot be divided, or if no
            target counts in the part, this validation itself is returned.
        generator : torch.Generator or numpy.random.Generator
            Draws the part, on the CPU; see :func:`~fedif_flower.valuation.subsets.draw_rows`.
        """
        batches = [batch.content for batch in self.batches]
        contents = draw_batches(batches, count, generator)
        if contents is None:
            return self
        sampled = self.with_batches(contents)
        if not sampled.total_weight:  # Every target in it may be ignored.
            return self
        return sampled


def _all_scores(
    score: ScoreFunction | None, measures: Mapping[str, ScoreFunction]
) -> dict[str, ScoreFunction]:
    """Return the user's functions by name; raise ConfigError for a name that is taken."""
    allowed = 'a mapping of names to functions, such as {"auc": auc}'
    require(isinstance(measures, Mapping), "measures", measures, allowed)
    for name in RESERVED_METRICS:
        allowed = f"names other than {', '.join(RESERVED_METRICS)}"
        require(name not in measures, "measures", name, allowed)
    scores = dict(measures)
    if score is not None:
        scores["score"] = score
    return scores
