"""The server's validation set: gradient, loss, accuracy and score of a model on it."""

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
from fedif_flower.valuation.parts import draw_batches
from fedif_flower.valuation.trial import try_batches

logger = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """Mean loss, share of right answers and the user's score; NaN where one is not defined."""

    loss: float
    accuracy: float
    score: float = math.nan


class Validation(Passes):
    r"""A held-out data set D' with the model and the loss that judge a parameter vector on it.

    .. math:: \ell(w, D') = \frac{1}{|D'|} \sum_{(x, y) \in D'} \ell(f_w(x), y)

    with :math:`f_w` the model with parameters w; or, where targets have weights :math:`c_y` or are
    ignored (:math:`c_y = 0`), :math:`\sum c_y\, \ell(f_w(x), y) / \sum c_y`. The model is copied,
    kept in eval mode on ``device``, and the data stay there between calls. Model, loss, scores and
    data are tried together at construction, by forward passes over all examples and backward
    passes on a few, which leave no trace. Losses are summed in float64, gradients at least in
    float32.

    Equal parameters have one loss. A model, loss or score that draws at random in eval mode too, as
    a variational autoencoder does, draws the same for each batch in every pass, from torch's,
    NumPy's and Python's own generators; the process's are left as they were. Such passes take one
    thread and wait for nobody: they do not run in the background.

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
        cross-entropy, for outputs of two classes or more; a single output needs another, such as
        ``nn.BCEWithLogitsLoss()``. Class weights and targets to ignore are understood of torch's
        ``cross_entropy`` and ``nll_loss``, as functions, partials or modules; any other loss must
        be the mean over the examples, which is tried at construction. On the CPU several threads
        may call it at once, each with a replica of the model and batches of its own.
    batch_loss : callable, optional
        In place of ``loss_fn``, for batches of any kind: ``batch_loss(model, batch)`` -> scalar
        mean, and what that divides by: the batch's size, or a sum of weights. The sizes are asked
        for at construction. One whose value for the whole is not the mean of its parts, such as a
        loss of pairs, is warned of: results depend on the batch size then.
    score : callable, optional
        Judges coalitions where targets are no classes; higher is better. ``score(outputs,
        targets)`` -> number, called once, with those of all examples in the order of the data, on
        the CPU and at least in float32; examples whose target is ignored are left out. So it may
        be an AUC or an F1 score. Beside ``batch_loss`` it is ``score(model, batch)`` -> mean over
        the batch, and so is ``score(outputs, targets)`` where outputs and targets of all examples
        take more than 256 MiB or are no tensors ``[n, ...]`` that can be put one after the other:
        that it is a mean is tried then.
    measures : mapping of str to callable, optional
        Further figures by name, each taken as ``score`` is, for :meth:`measure`; none is called
        "loss", "accuracy" or "score".
    noise : float or Tensor
        :math:`\varepsilon`, the share of wrong labels that a cross-entropy allows for, >= 0 and <
        (C - 1) / C, or the chances of each label by class, ``[C, C]`` (see
        :class:`~fedif_flower.valuation.label_noise.ForwardCorrected`): whatever the loss is used
        for is corrected, accuracy and scores are not. Another loss stays as it is, which the log
        says. :func:`~fedif_flower.valuation.examination.vet` estimates it.
    device : str
        ``"auto"`` (CUDA, then MPS, then CPU) or a torch device.
    batch_size : int, optional
        Examples per pass, >= 1; it changes memory and speed, not results beyond rounding (and the
        draws of a model that draws at random). A model that answers for an example by the others in
        its batch is warned of. Default: 100 on the CPU, 1,000 elsewhere.

    Attributes
    ----------
    metrics : frozenset of str
        What is defined of "loss", "accuracy" (``loss_fn`` with outputs ``[n, classes]`` and
        integer targets ``[n]``), "score" and the names of ``measures``.
    num_examples : float
        How many examples of D' have a target that is not ignored; sizes that are no whole numbers
        come from ``batch_loss``.
    total_weight : float
        What the mean loss over D' divides by.

    Raises
    ------
    ValuationError
        If there are no examples, lengths differ, the model has nothing to train, or model, loss
        and data do not fit each other; if model or loss remember in eval mode what they were given
        before; if a score is no finite number at the given model.
    ConfigError
        If ``loss_fn`` is no mean over the examples, or a score that has to be one is none; if
        ``batch_loss`` gives a sum in place of the mean; if one compares each output with every
        target, as of shapes ``[n, 1]`` and ``[n]``; if the gradient of the loss is exactly 0 at
        the given model, or its value the same at any; if ``noise`` lies outside its range.
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
        scores = _all_scores(score, measures or {})
        objective = objective_of(loss_fn, batch_loss, scores, noise)
        dropped = count_dropped(inputs)
        if dropped:
            logger.warning(
                "left out of the held-out set, since they fill no batch and its DataLoader has "
                "drop_last=True: %d of the examples",
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
        """Say what is judged, by how many examples, in which metrics, where."""
        model = type(self.judge.model.module).__name__
        return (
            f"Validation({model} with {self.num_params:,} parameters, "
            f"{self.num_examples:,} examples, {', '.join(sorted(self.metrics))}, {self.device})"
        )

    @property
    def noise(self) -> float | Tensor:
        """The share of wrong labels that the loss allows for, or their chances ``[C, C]``."""
        loss_fn = self.judge.objective.loss_fn
        return loss_fn.noise if isinstance(loss_fn, ForwardCorrected) else 0.0

    @property
    def noise_interval(self) -> tuple[float, float] | None:
        """Between which shares of wrong labels the true one lies; ``None``: that is not known."""
        return self._noise_interval

    def with_noise(
        self, noise: float | Tensor, interval: tuple[float, float] | None = None
    ) -> Validation:
        """Return the same data and model with a loss that allows for wrong labels.

        Parameters
        ----------
        noise : float or Tensor
            As the constructor takes it. Where the loss stays as it is, this validation itself is
            returned.
        interval : tuple of float, optional
            Between which shares the true one lies, low < high: contributions are measured at both
            ends, too, by :class:`~fedif_flower.attribution.callback.PathAttribution`. The gradient
            and the losses are those of ``noise`` alone. Chances by class have none.

        Raises
        ------
        ConfigError
            If a share lies outside its range, or the interval has no width.
        """
        objective = corrected_objective(self.judge.objective, noise)
        if objective is self.judge.objective:
            return self
        other = copy.copy(self)
        vars(other).pop("gradients", None)  # Those of the loss as it was.
        old = self.judge
        model = FlatModel(old.model.module, self.device)
        judge = Judge(model, objective, whole=old.whole, is_random=old.is_random)
        Passes.__init__(other, judge)
        other.loss(other.params())  # What lies outside its range is refused here.
        other._noise_interval = None
        is_share = not isinstance(noise, Tensor) and is_noise(noise)
        if interval is not None and is_share:
            low, high = interval
            require(0 <= low < high, "interval", interval, "0 <= low < high")
            self.with_noise(high)  # Likewise.
            other._noise_interval = (low, high)
        return other

    @property
    def parameter_names(self) -> list[str]:
        """The trainable parameters, in the order of the vector [d]."""
        return self.judge.model.parameter_names

    @property
    def tied_names(self) -> dict[str, str]:
        """The other names of arrays that the model has under several, and their first name."""
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
        """Return the parameters ``[d]`` last used (at first: the given model's own)."""
        return self.judge.model.params.detach().clone()

    def gradient(self, params: Tensor, buffers: Buffers = None) -> Tensor:
        r"""Return :math:`\nabla \ell(w, D')`, the exact mean over all examples.

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

        Losses corrected for other shares differ in how much each example counts alone (see
        :class:`~fedif_flower.valuation.label_noise.ForwardCorrected`): one pass forward serves
        them all, and each takes a pass back.

        Parameters
        ----------
        noises : sequence of float
            :math:`\varepsilon`, >= 0 and < (C - 1) / C, of a loss that is corrected for one share.
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
            *(params, buffers),
            lambda judge, batches: judge.differentiate_by(losses, batches, self.total_weight),
            ("loss",),
        )
        gradients = parts[0]
        for of_part in parts[1:]:
            for gradient, more in zip(gradients, of_part, strict=True):
                gradient += more
        if not all(all_finite(gradient) for gradient in gradients):
            raise DivergedError("the validation gradient is not finite: the model has diverged")
        return gradients

    @cached_property
    def gradients(self) -> SharedGradients:
        """What takes :meth:`gradient` in the background for all who need it."""
        return SharedGradients(self.loss_and_gradient, in_background=not self.judge.is_random)

    def loss_and_gradient(self, params: Tensor, buffers: Buffers = None) -> LossAndGradient:
        """Return loss and gradient ``[d]`` at ``params`` [d] from one pass; either may be NaN."""
        parts = self._go_through(
            *(params, buffers),
            lambda judge, batches: judge.differentiate(batches, self.total_weight),
            ("loss",),
        )
        gradient = parts[0].gradient
        for part in parts[1:]:
            gradient += part.gradient
        return LossAndGradient(sum(part.loss for part in parts), gradient)

    def evaluate(self, params: Tensor, buffers: Buffers = None) -> Evaluation:
        """Return loss, accuracy and score at ``params`` [d] from one pass over the data."""
        return Evaluation(*self.means(params, buffers, ("loss", "accuracy", "score")).tolist())

    def measure(self, params: Tensor, buffers: Buffers = None) -> dict[str, float]:
        """Return loss, accuracy and ``measures`` at ``params`` [d], those that are defined."""
        names = sorted(self.metrics - {"score"})
        return dict(zip(names, self.means(params, buffers, names).tolist(), strict=True))

    def loss(self, params: Tensor, buffers: Buffers = None) -> float:
        """Return the mean loss at ``params`` [d]."""
        return float(self.means(params, buffers, ("loss",)))

    def accuracy(self, params: Tensor, buffers: Buffers = None) -> float:
        """Return the share of right answers at ``params`` [d], in [0, 1]."""
        return float(self.means(params, buffers, ("accuracy",)))

    def means(self, params: Tensor, buffers: Buffers, metrics: Sequence[str]) -> Tensor:
        """Return means over the examples at ``params`` [d] of losses and right answers, and scores.

        Returns
        -------
        Tensor
            ``[len(metrics)]``, float64, on this validation's device (float32 on MPS), which may
            still be computing. NaN where a metric is not defined.
        """
        parts = self._go_through(
            *(params, buffers),
            lambda judge, batches: judge.sum(batches, metrics),
            self.metrics.intersection(metrics),
        )
        return self._means_of(torch.stack(parts).sum(dim=0), metrics)

    def mean_by(
        self, judge: Judge, params: Tensor, buffers: Mapping[str, Tensor], metric: str
    ) -> Tensor:
        """Return a metric's mean ``[1]`` as :meth:`means` does, by one of :meth:`side_by_side`."""
        judge.model.load(params, buffers)
        return self._means_of(judge.sum(self.batches, [metric]), [metric])

    def _means_of(self, sums: Tensor, metrics: Sequence[str]) -> Tensor:
        """Return the means of metrics from their sums."""
        return sums / sums.new_tensor([self._divisor(metric) for metric in metrics])

    def _divisor(self, metric: str) -> float:
        """Return what a metric's sum over all batches is divided by."""
        if metric == "loss":
            return self.total_weight
        return 1.0 if metric in self.judge.whole else self.num_examples

    def sample(self, count: int, generator: torch.Generator) -> Validation:
        """Return a random part of D' with this model, stratified by class (seeded on the CPU).

        Parameters
        ----------
        count : int
            How many examples, >= 1. Where D' has no more, or where its batches cannot be divided,
            this validation itself is returned.
        generator : torch.Generator
            See :func:`~fedif_flower.valuation.parts.draw_rows`.
        """
        batches = [batch.content for batch in self.batches]
        if (contents := draw_batches(batches, count, generator)) is None:
            return self
        part = self.part(contents)
        return part if part.total_weight else self  # Every target in it may be ignored.


def _all_scores(
    score: ScoreFunction | None, measures: Mapping[str, ScoreFunction]
) -> dict[str, ScoreFunction]:
    """Return the figures that users define, by name; raise ConfigError for names that are taken."""
    for name in RESERVED_METRICS:
        allowed = f"names other than {', '.join(RESERVED_METRICS)}"
        require(name not in measures, "measures", name, allowed)
    scores = dict(measures)
    if score is not None:
        scores["score"] = score
    return scores
