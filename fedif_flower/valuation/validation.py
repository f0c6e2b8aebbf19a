"""The server's validation set: gradient, loss, accuracy and score of a model on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedif_flower.devices import select_device, widest_float
from fedif_flower.errors import ValuationError
from fedif_flower.tasks.batches import read_batches, to_device
from fedif_flower.tasks.modules import keep_freed_memory, without_trace
from fedif_flower.tasks.task import BatchLoss, LossFunction, ScoreFunction
from fedif_flower.valuation.drafts import AccuracyDraft, has_fast_bfloat16
from fedif_flower.valuation.flat_model import FlatModel, HasFlatModel
from fedif_flower.valuation.gradients import LossAndGradient, SharedGradients
from fedif_flower.valuation.objective import objective_of
from fedif_flower.valuation.replicas import Batch, HasReplicas, Replicas
from fedif_flower.valuation.subsample import draw_batches
from fedif_flower.valuation.trial import sized, try_batches

Inputs = Tensor | Mapping[str, Any] | tuple[Any, ...] | Dataset[Any] | Iterable[Any]
Targets = Tensor | Mapping[str, Any] | tuple[Any, ...]


class Evaluation(NamedTuple):
    """Mean loss, share of right answers and the user's score; NaN where one is not defined."""

    loss: float
    accuracy: float
    score: float = math.nan


class Validation(HasFlatModel, HasReplicas):
    r"""A held-out data set D' with the model and the loss that judge a parameter vector on it.

    .. math:: \ell(w, D') = \frac{1}{|D'|} \sum_{(x, y) \in D'} \ell(f_w(x), y)

    with :math:`f_w` the model with parameters w; or, where targets have weights :math:`c_y` or are
    ignored (:math:`c_y = 0`), :math:`\sum c_y\, \ell(f_w(x), y) / \sum c_y`. The model is copied,
    kept in eval mode on ``device``, and the data stay there between calls. Model, loss and data
    are tried together at construction, by a forward and a backward pass on a few examples that
    leaves no trace. Losses are summed in float64, gradients at least in float32.

    Parameters
    ----------
    model : torch.nn.Module
        Any module; its parameters with ``requires_grad`` form the vector [d], in the order of
        ``model.named_parameters()``. The module itself is left alone.
    inputs : Tensor, dict or tuple of Tensor, Dataset, DataLoader or iterable of batches
        Tensors or NumPy arrays ``[n, ...]``; a Dataset of examples; or what yields batches
        ``(inputs, targets)``, each of any structure, as a DataLoader or a list of batches does.
        For a batch ``(a, b, targets)`` the model is called with ``(a, b)``.
    targets : Tensor, dict or tuple of Tensor, optional
        ``[n, ...]``; left out where ``inputs`` brings its own.
    loss_fn : callable, optional
        ``loss_fn(model(inputs), targets)`` -> scalar, the *mean* over the batch. Default:
        cross-entropy. Class weights and targets to ignore are understood of torch's
        ``cross_entropy`` and ``nll_loss``, as functions, partials or modules; any other loss must
        be the mean over the examples, which is tried at construction. On the CPU several threads
        may call it at once, each with a replica of the model and batches of its own.
    batch_loss : callable, optional
        In place of ``loss_fn``, for batches of any kind: ``batch_loss(model, batch)`` -> scalar
        mean, and what that divides by: the batch's size, or a sum of weights. The sizes are asked
        for at construction.
    score : callable, optional
        Judges coalitions where targets are no classes: ``score(model(inputs), targets)``, or
        ``score(model, batch)`` beside ``batch_loss`` -> mean over the batch; higher is better.
    measures : mapping of str to callable, optional
        Further figures by name, each taken as ``score`` is, for :meth:`measure`.
    device : str
        ``"auto"`` (CUDA, then MPS, then CPU) or a torch device.
    batch_size : int, optional
        Examples per pass, >= 1; it changes memory and speed, not results beyond rounding.
        Default: 100 on the CPU, 1,000 elsewhere.

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
        and data do not fit each other.
    ConfigError
        If ``loss_fn`` is no mean over the examples.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        targets: Targets | None = None,
        *,
        loss_fn: LossFunction | None = None,
        batch_loss: BatchLoss | None = None,
        score: ScoreFunction | None = None,
        measures: Mapping[str, ScoreFunction] | None = None,
        device: str | torch.device = "auto",
        batch_size: int | None = None,
    ) -> None:
        self.device = select_device(device)
        self.batch_size = batch_size or (100 if self.device.type == "cpu" else 1000)
        if self.batch_size < 1:
            raise ValuationError(f"batch_size is {batch_size}; allowed: >= 1")
        if loss_fn is not None and batch_loss is not None:
            raise ValuationError("loss_fn and batch_loss are both given; allowed: one of them")
        scores = {**(measures or {}), **({"score": score} if score else {})}
        self._objective = objective_of(loss_fn, batch_loss, scores)
        if self.device.type == "cpu":
            keep_freed_memory()
        self._adopt(model)
        with without_trace(self._model.module, self.device):
            batches = (to_device(batch, self.device) for batch in self._read(inputs, targets))
            found, self.metrics = try_batches(self._model, self._objective, batches)
        self._hold(found)
        self._draft = self._draft_of_accuracy()

    def __repr__(self) -> str:
        """Say what is judged, by how many examples, in which metrics, where."""
        model = type(self._model.module).__name__
        return (
            f"Validation({model} with {self.num_params:,} parameters, "
            f"{self.num_examples:,} examples, {', '.join(sorted(self.metrics))}, {self.device})"
        )

    def _adopt(self, model: nn.Module) -> None:
        """Take a copy of ``model``, to be loaded with other parameters from now on."""
        self._model = FlatModel(model, self.device)
        self._lock = Lock()
        self._passes, self._judges = Replicas(), Replicas()

    def _read(self, inputs: Inputs, targets: Targets | None) -> Iterator[Any]:
        return read_batches(inputs, targets, self.batch_size)

    def _sized(self, content: Any) -> Batch:
        return sized(self._model.module, self._objective, content)

    def _draft_of_accuracy(self) -> AccuracyDraft | None:
        """Return what counts right answers faster than a pass in float32, if anything does."""
        if (
            "accuracy" not in self.metrics
            or self.device.type != "cpu"
            or not has_fast_bfloat16()
            or not self.is_large
        ):
            return None
        with without_trace(self._model.module, self.device):
            contents = [batch.content for batch in self._batches]
            draft = AccuracyDraft.from_batches(self._model.module, contents)
        if draft is None or len(draft.targets) != self.num_examples:  # Some are ignored.
            return None
        # It holds all images as one tensor: the batches become views of that.
        sizes = [len(batch.content[-1]) for batch in self._batches]
        inputs, targets = (torch.split(t, sizes) for t in (draft.inputs, draft.targets))
        pairs = zip(inputs, targets, strict=True)
        self._batches = [b._replace(content=p) for b, p in zip(self._batches, pairs, strict=True)]
        return draft

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> Tensor:
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
        ValuationError
            If the length of ``params`` is not d, or a buffer is unknown.
        DivergedError
            If the gradient is not finite.
        """
        return self.loss_and_gradient(params, buffers).checked().gradient

    @cached_property
    def gradients(self) -> SharedGradients:
        """What takes :meth:`gradient` in the background for all who need it."""
        return SharedGradients(self)

    def loss_and_gradient(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None = None
    ) -> LossAndGradient:
        """Return loss and gradient ``[d]`` at ``params`` [d] from one pass; either may be NaN."""
        with self._loaded(params, buffers):
            parts = self.share_batches(
                lambda judge, part: judge._differentiate(part, self.total_weight), ("loss",)
            )
        gradient = parts[0].gradient
        for part in parts[1:]:
            gradient += part.gradient
        return LossAndGradient(sum(part.loss for part in parts), gradient)

    def evaluate(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> Evaluation:
        """Return loss, accuracy and score at ``params`` [d] from one pass over the data."""
        return Evaluation(*self.means(params, buffers, ("loss", "accuracy", "score")).tolist())

    def measure(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None = None
    ) -> dict[str, float]:
        """Return loss, accuracy and ``measures`` at ``params`` [d], those that are defined."""
        names = sorted(self.metrics - {"score"})
        return dict(zip(names, self.means(params, buffers, names).tolist(), strict=True))

    def loss(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> float:
        """Return the mean loss at ``params`` [d]."""
        return float(self.means(params, buffers, ("loss",)))

    def accuracy(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> float:
        """Return the share of right answers at ``params`` [d], in [0, 1]."""
        return float(self.means(params, buffers, ("accuracy",)))

    def means(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None, metrics: Sequence[str]
    ) -> Tensor:
        """Return means over the examples at ``params`` [d]: of losses, right answers, scores.

        Returns
        -------
        Tensor
            ``[len(metrics)]``, float64, on this validation's device (float32 on MPS), which may
            still be computing. NaN where a metric is not defined.
        """
        asked = [metric for metric in metrics if metric in self.metrics]
        with self._loaded(params, buffers):
            parts = self.share_batches(lambda judge, part: judge._sum(part, asked), asked)
        sums = torch.stack(parts).sum(dim=0)
        undefined = sums.new_full((), torch.nan)
        by_metric = {
            metric: total / (self.total_weight if metric == "loss" else self.num_examples)
            for metric, total in zip(asked, sums, strict=True)
        }
        return torch.stack([by_metric.get(metric, undefined) for metric in metrics])

    def drafted_accuracy(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return the share of right answers at ``params`` [d], as :meth:`means` does: ``[1]``.

        Where the processor is fast in bfloat16, float32 sees the close calls alone: see
        :class:`~fedif_flower.valuation.drafts.AccuracyDraft`.
        """
        if self._draft is None:
            return self.means(params, buffers, ("accuracy",))
        with self._loaded(params, buffers):
            return self._draft.count(self._model.module)[None].double() / self.num_examples

    def sample(self, count: int, generator: torch.Generator) -> Validation:
        """Return a random part of D' with this model, stratified by class (seeded on the CPU).

        Parameters
        ----------
        count : int
            How many examples, >= 1. Where D' has no more, or where its batches cannot be divided,
            this validation itself is returned.
        generator : torch.Generator
            See :func:`~fedif_flower.valuation.subsample.draw_rows`.
        """
        batches = [batch.content for batch in self._batches]
        if (contents := draw_batches(batches, count, generator)) is None:
            return self
        with self._lock, torch.no_grad():
            part = self.part([self._sized(content) for content in contents])
        return part if part.total_weight else self  # Every target in it may be ignored.

    def _differentiate(self, batches: Sequence[Batch], total_weight: float) -> LossAndGradient:
        """Return what these batches add to the mean loss of the whole and to its gradient."""
        gradient = self._model.zero_gradient()
        # Half precision keeps three digits: the batches' gradients are then added up elsewhere.
        is_half = gradient.itemsize < 4
        total = torch.zeros_like(gradient, dtype=torch.float32) if is_half else gradient
        counted = [batch for batch in batches if batch.weight]
        losses = []
        for batch in counted:
            share = batch.weight / total_weight
            loss = self._objective.loss(self._model.module, batch.content)
            (loss if is_half else loss * share).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            if is_half:
                total.add_(gradient, alpha=share)
                gradient.zero_()
        values = torch.stack(losses).tolist() if losses else []
        mean = sum(v * b.weight for v, b in zip(values, counted, strict=True)) / total_weight
        return LossAndGradient(mean, total if is_half else total.clone())

    def _sum(self, batches: Sequence[Batch], metrics: Sequence[str]) -> Tensor:
        """Return each metric's sum over these batches, ``[len(metrics)]``."""
        module = self._model.module
        with self._model.evaluation_mode():
            found = [self._objective.figures(module, b.content, metrics) for b in batches]
            sums = [
                self._total(metric, batches, [f[i] for f in found])
                for i, metric in enumerate(metrics)
            ]
        return torch.stack(sums) if sums else torch.zeros(0, dtype=widest_float(self.device))

    def _total(self, metric: str, batches: Sequence[Batch], figures: Sequence[Tensor]) -> Tensor:
        """Return a metric's sum over batches from its mean over each."""
        if metric == "accuracy":  # Right answers are counted.
            return self._weighted_sum(figures, [1] * len(batches))
        weights = [batch.weight if metric == "loss" else batch.size for batch in batches]
        # Where no target counts, the mean is 0 / 0.
        pairs = [(figure, w) for figure, w in zip(figures, weights, strict=True) if w]
        return self._weighted_sum([figure for figure, _ in pairs], [w for _, w in pairs])

    def _weighted_sum(self, values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return a sum of scalars times weights, which no half precision rounds."""
        dtype = widest_float(self.device)
        if not values:
            return torch.zeros((), dtype=dtype, device=self.device)
        factors = torch.tensor(weights, dtype=dtype, device=self.device)
        return torch.dot(torch.stack(list(values)).to(self.device, dtype), factors)

    @contextmanager
    def _loaded(self, params: Tensor, buffers: Mapping[str, Tensor] | None) -> Iterator[None]:
        if params.shape != self._model.params.shape:
            raise ValuationError(f"params has shape {list(params.shape)}, not [{self.num_params}]")
        if unknown := [name for name in buffers or {} if name not in self._model.state]:
            raise ValuationError(f"buffers {unknown} are not in the model")
        with self._lock:
            self._model.load(params, buffers or {})
            yield
