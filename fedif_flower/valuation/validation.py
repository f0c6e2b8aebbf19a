"""The server's validation set: gradient, loss, accuracy and score of a model on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedif_flower.devices import select_device
from fedif_flower.errors import ValuationError
from fedif_flower.tasks.batches import first_few, map_tensors, read_batches, to_device
from fedif_flower.tasks.modules import (
    fastest_memory_format,
    keep_freed_memory,
    to_memory_format,
    without_trace,
)
from fedif_flower.tasks.task import BatchLoss, LossFunction, ScoreFunction
from fedif_flower.valuation.drafts import AccuracyDraft, has_fast_bfloat16
from fedif_flower.valuation.flat_model import FlatModel, HasFlatModel
from fedif_flower.valuation.gradients import LossAndGradient, SharedGradients
from fedif_flower.valuation.objective import objective_of
from fedif_flower.valuation.replicas import Batch, HasReplicas, Replicas
from fedif_flower.valuation.subsample import draw_batches
from fedif_flower.valuation.trial import FEW, defined_metrics, differentiate

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

    with :math:`f_w` the model with parameters w. The model is copied, kept in eval mode on
    ``device``, and the data stay there between calls. Model, loss and data are tried together
    at construction, by a forward and a backward pass on a few examples that leaves no trace.

    Parameters
    ----------
    model : torch.nn.Module
        Any module; its parameters with ``requires_grad`` form the vector [d], in the order of
        ``model.named_parameters()``. The module itself is left alone.
    inputs : Tensor, dict or tuple of Tensor, Dataset, DataLoader or iterable of batches
        Tensors ``[n, ...]``, or what yields batches ``(inputs, targets)``, each of any structure.
        For a batch ``(a, b, targets)`` the model is called with ``(a, b)``.
    targets : Tensor, dict or tuple of Tensor, optional
        ``[n, ...]``; left out where ``inputs`` brings its own.
    loss_fn : callable, optional
        ``loss_fn(model(inputs), targets)`` -> scalar, the *mean* over the batch. Default:
        cross-entropy. On the CPU several threads may call it at once, each with a replica of the
        model and batches of its own.
    batch_loss : callable, optional
        In place of ``loss_fn``, for batches of any kind: ``batch_loss(model, batch)`` -> scalar
        mean and size of the batch. The sizes are asked for at construction.
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
    num_examples : int
        Length of D'.

    Raises
    ------
    ValuationError
        If there are no examples, lengths differ, the model has nothing to train, or model, loss
        and data do not fit each other.
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
            self._batches, self.metrics = self._try(batches)
        self.num_examples = sum(size for _, size in self._batches)
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

    def _try(self, batches: Iterator[Any]) -> tuple[list[Batch], frozenset[str]]:
        """Return all batches once the first has shown that they fit, and what is defined."""
        objective, module = self._objective, self._model.module
        first = next(batches, None)
        if first is None:
            raise ValuationError("the validation set is empty")
        objective.check(first)

        def formatted(batch: Any, memory_format: torch.memory_format) -> Any:
            return map_tensors(lambda tensor: to_memory_format(tensor, memory_format), batch)

        def attempt(memory_format: torch.memory_format) -> None:
            few = formatted(first_few(first, FEW), memory_format)
            differentiate(module, self._model.parameters, objective, few)

        fastest = fastest_memory_format(module, attempt)
        metrics = defined_metrics(
            module, self._model.parameters, objective, formatted(first, fastest)
        )
        with torch.no_grad():
            contents = (formatted(batch, fastest) for batch in chain([first], batches))
            sized = [Batch(content, objective.size(module, content)) for content in contents]
        found = [batch for batch in sized if batch.size]
        if not found:
            raise ValuationError("the validation set is empty")
        return found, metrics

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
        if draft:  # It holds all images as one tensor: the batches become views of that.
            sizes = [batch.size for batch in self._batches]
            inputs, targets = (torch.split(t, sizes) for t in (draft.inputs, draft.targets))
            pairs = zip(inputs, targets, strict=True)
            self._batches = [Batch(pair, len(pair[1])) for pair in pairs]
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
            n = self.num_examples
            parts = self.share_batches(lambda judge, part: judge._differentiate(part, n), ("loss",))
        gradient = parts[0].gradient
        for part in parts[1:]:
            gradient += part.gradient
        return LossAndGradient(sum(part.loss for part in parts), gradient)

    def evaluate(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> Evaluation:
        """Return loss, accuracy and score at ``params`` [d] from one pass over the data."""
        totals = self.totals(params, buffers, ("loss", "accuracy", "score"))
        return Evaluation(*(total / self.num_examples for total in totals.tolist()))

    def measure(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None = None
    ) -> dict[str, float]:
        """Return loss, accuracy and ``measures`` at ``params`` [d], those that are defined."""
        names = sorted(self.metrics - {"score"})
        totals = self.totals(params, buffers, names).tolist()
        return {n: total / self.num_examples for n, total in zip(names, totals, strict=True)}

    def loss(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> float:
        """Return the mean loss at ``params`` [d]."""
        return float(self.totals(params, buffers, ("loss",))) / self.num_examples

    def accuracy(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> float:
        """Return the share of right answers at ``params`` [d], in [0, 1]."""
        return float(self.totals(params, buffers, ("accuracy",))) / self.num_examples

    def totals(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None, metrics: Sequence[str]
    ) -> Tensor:
        """Return sums over the examples at ``params`` [d]: of losses, right answers, scores.

        Returns
        -------
        Tensor
            ``[len(metrics)]``, float32, on this validation's device, which may still be computing.
            NaN where a metric is not defined.
        """
        asked = [metric for metric in metrics if metric in self.metrics]
        with self._loaded(params, buffers):
            parts = self.share_batches(lambda judge, part: judge._sum(part, asked), asked)
        sums = torch.stack(parts).sum(dim=0)
        undefined = torch.full((), torch.nan, device=self.device)
        by_metric = dict(zip(asked, sums, strict=True))
        return torch.stack([by_metric.get(metric, undefined) for metric in metrics])

    def num_correct(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the number of right answers at ``params`` [d], as :meth:`totals` does: ``[1]``.

        Where the processor is fast in bfloat16, float32 sees the close calls alone: see
        :class:`~fedif_flower.valuation.drafts.AccuracyDraft`.
        """
        if self._draft is None:
            return self.totals(params, buffers, ("accuracy",))
        with self._loaded(params, buffers):
            return self._draft.count(self._model.module)[None]

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
        if (contents := draw_batches([c for c, _ in self._batches], count, generator)) is None:
            return self
        with self._lock, torch.no_grad():
            module = self._model.module
            return self.part([Batch(c, self._objective.size(module, c)) for c in contents])

    def _differentiate(self, batches: Sequence[Batch], num_examples: int) -> LossAndGradient:
        """Return what these batches add to the mean loss over n examples and its gradient."""
        total = self._model.zero_gradient()
        mean = torch.zeros((), dtype=total.dtype, device=self.device)
        for batch, size in batches:
            loss = self._objective.loss(self._model.module, batch) * (size / num_examples)
            loss.backward()  # type: ignore[no-untyped-call]
            mean += loss.detach()
        return LossAndGradient(float(mean), total.clone())

    def _sum(self, batches: Sequence[Batch], metrics: Sequence[str]) -> Tensor:
        """Return each metric's sum over these batches, ``[len(metrics)]``."""
        sums = torch.zeros(len(metrics), device=self.device)
        with torch.inference_mode():
            for batch, size in batches if metrics else ():
                found = self._objective.totals(self._model.module, batch, size, metrics)
                sums += torch.stack([total.to(self.device) for total in found])
        return sums

    @contextmanager
    def _loaded(self, params: Tensor, buffers: Mapping[str, Tensor] | None) -> Iterator[None]:
        if params.shape != self._model.params.shape:
            raise ValuationError(f"params has shape {list(params.shape)}, not [{self.num_params}]")
        if unknown := [name for name in buffers or {} if name not in self._model.state]:
            raise ValuationError(f"buffers {unknown} are not in the model")
        with self._lock:
            self._model.load(params, buffers or {})
            yield
