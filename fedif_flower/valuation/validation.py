"""The server's validation set: gradient, loss and accuracy of a model on it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from fedif_flower.devices import select_device
from fedif_flower.errors import DivergedError, ValuationError
from fedif_flower.messages.layout import trainable_names
from fedif_flower.tasks.modules import keep_freed_memory
from fedif_flower.valuation.batches import device_batches
from fedif_flower.valuation.coalitions import MEMORY_BUDGET, Metric, coalition_scores
from fedif_flower.valuation.pooling import pool_pairwise
from fedif_flower.valuation.replica_pool import Team

LossFunction = Callable[[Any, Any], Tensor]

# With less to multiply per pass, threads only get into each other's way.
_WORTH_SHARING = 10_000_000


class Evaluation(NamedTuple):
    """Mean loss and share of right answers (NaN where the targets are no class labels)."""

    loss: float
    accuracy: float


class Validation:
    r"""A held-out data set D' with the model and the loss that judge a parameter vector on it.

    .. math:: \ell(w, D') = \frac{1}{|D'|} \sum_{(x, y) \in D'} \ell(f_w(x), y)

    with :math:`f_w` the model with parameters w. The model is copied, kept in eval mode on
    ``device``, and the data stay there between calls.

    Parameters
    ----------
    model : torch.nn.Module
        Any module; its parameters with ``requires_grad`` form the vector [d], in the order of
        ``model.named_parameters()``. The module itself is left alone.
    inputs : Tensor, Dataset or DataLoader
        ``[n, ...]``, or a data set or loader that yields ``(inputs, targets)``.
    targets : Tensor, optional
        ``[n, ...]``; left out where ``inputs`` is a data set or loader.
    loss_fn : callable
        ``loss_fn(model(inputs), targets)`` -> scalar, the *mean* over the batch.
    device : str
        ``"auto"`` (CUDA, then MPS, then CPU) or a torch device.
    batch_size : int, optional
        Examples per pass, >= 1; it changes memory and speed, not results beyond rounding.
        Default: 100 on the CPU, 1,000 elsewhere.

    Raises
    ------
    ValuationError
        If there are no examples, lengths differ, or the model has nothing to train.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor | Dataset[Any] | DataLoader[Any],
        targets: Tensor | None = None,
        *,
        loss_fn: LossFunction = functional.cross_entropy,
        device: str | torch.device = "auto",
        batch_size: int | None = None,
    ) -> None:
        self.device = select_device(device)
        self.loss_fn = loss_fn
        self.batch_size = batch_size or (100 if self.device.type == "cpu" else 1000)
        if self.batch_size < 1:
            raise ValuationError(f"batch_size is {batch_size}; allowed: >= 1")
        self.parameter_names = trainable_names(model)
        if not self.parameter_names:
            raise ValuationError("the model has no parameter with requires_grad")
        self._batches = list(device_batches(inputs, targets, self.batch_size, self.device))
        self.num_examples = sum(size for _, _, size in self._batches)
        if not self.num_examples:
            raise ValuationError("the validation set is empty")
        self._team: Team[Validation] | None = None
        if self.device.type == "cpu":
            keep_freed_memory()
        self._adopt(model)

    def _adopt(self, model: nn.Module) -> None:
        """Take a copy of ``model``, to be loaded with other parameters from now on."""
        self._model = copy.deepcopy(model).to(self.device).eval()
        pool_pairwise(self._model)
        parameters = dict(self._model.named_parameters())
        self._parameters = [parameters[name] for name in self.parameter_names]
        self._state = {**parameters, **dict(self._model.named_buffers())}
        # Parameters and their gradients are views of two flat vectors: loading a model is one
        # copy, and a backward pass leaves the gradient [d] ready.
        self._flat = _flatten(self._parameters)
        self._flat_gradient: Tensor | None = None
        self._lock = Lock()

    @property
    def num_params(self) -> int:
        """Length d of the parameter vector."""
        return self._flat.numel()

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameter vector."""
        return self._flat.dtype

    def params(self) -> Tensor:
        """Return the parameters ``[d]`` last used (at first: the given model's own)."""
        return self._flat.detach().clone()

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
        with self._loaded(params, buffers):
            total = self._zero_gradient()
            for inputs, targets, size in self._batches:
                loss = self.loss_fn(self._model(inputs), targets)
                (loss * (size / self.num_examples)).backward()  # type: ignore[no-untyped-call]
            gradient = total.clone()
        if not bool(torch.isfinite(gradient).all()):
            raise DivergedError("the validation gradient is not finite: the model has diverged")
        return gradient

    def evaluate(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> Evaluation:
        """Return loss and accuracy at ``params`` [d] from one pass over the data."""
        totals = self.totals(params, buffers, ("loss", "accuracy"))
        return Evaluation(*(total / self.num_examples for total in totals.tolist()))

    def loss(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> float:
        """Return the mean loss at ``params`` [d]."""
        return float(self.totals(params, buffers, ("loss",))) / self.num_examples

    def accuracy(self, params: Tensor, buffers: Mapping[str, Tensor] | None = None) -> float:
        """Return the share of right answers at ``params`` [d], in [0, 1]."""
        return float(self.totals(params, buffers, ("accuracy",))) / self.num_examples

    def totals(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None, metrics: Sequence[Metric]
    ) -> Tensor:
        """Return sums over the examples at ``params`` [d]: of losses, of right answers.

        Returns
        -------
        Tensor
            ``[len(metrics)]``, float32, on this validation's device: nothing has waited for it.
        """
        measures = [self._total_loss if metric == "loss" else _num_correct for metric in metrics]
        totals = torch.zeros(len(measures), device=self.device)
        with self._loaded(params, buffers), torch.inference_mode():
            for inputs, targets, size in self._batches:
                outputs = self._model(inputs)
                totals += torch.stack([measure(outputs, targets, size) for measure in measures])
        return totals

    def _total_loss(self, outputs: Any, targets: Any, size: int) -> Tensor:
        return (self.loss_fn(outputs, targets) * size).float()

    def team(self, at_most: int) -> Team[Validation] | None:
        """Return copies with a thread each, on the same data; ``None`` where one does as well.

        Parameters
        ----------
        at_most : int
            Members, beyond which there would be too many copies of the model.
        """
        threads = torch.get_num_threads()
        if self.device.type != "cpu" or threads == 1:
            return None
        shared = self.num_params * self.num_examples >= _WORTH_SHARING
        size = max(min(threads if shared else 1, at_most), 1)
        if self._team is None or self._team.size != size:
            self._team = Team([self._copy() for _ in range(size)])
        for member in self._team.members:
            member._load(self._flat, self._state)
        return self._team

    def _copy(self) -> Validation:
        other = copy.copy(self)
        other._adopt(self._model)
        return other

    def coalition_accuracy(
        self,
        client_params: Tensor,
        masks: Tensor,
        global_params: Tensor,
        *,
        client_buffers: Mapping[str, Tensor] | None = None,
        global_buffers: Mapping[str, Tensor] | None = None,
        memory_budget: int = MEMORY_BUDGET,
    ) -> Tensor:
        r"""Return the accuracy of each coalition's unweighted mean model.

        .. math:: u(C) = \mathrm{acc}\Bigl(\tfrac{1}{|C|} \sum_{i \in C} w_i\Bigr),
                  \qquad u(\emptyset) = \mathrm{acc}(w_{t-1})

        Parameters
        ----------
        client_params : Tensor
            ``[m, d]``: the clients' models w_i.
        masks : Tensor
            ``[c, m]``, bool: who belongs to each coalition C.
        global_params : Tensor
            ``[d]``: w_{t-1}.
        client_buffers : mapping of str to Tensor, optional
            Floating-point buffers by name, ``[m, ...]`` each: averaged like the parameters.
        global_buffers : mapping of str to Tensor, optional
            The global model's, for the empty coalition.
        memory_budget : int
            Bytes that coalition models may take at a time, > 0, copies of the model that
            threads work with included; at least one is formed.

        Returns
        -------
        Tensor
            ``[c]``, float64, in [0, 1], on the CPU.

        Raises
        ------
        ValuationError
            If shapes or dtypes do not fit together.
        """
        return coalition_scores(
            self,
            client_params,
            masks,
            global_params,
            metric="accuracy",
            client_buffers=client_buffers or {},
            global_buffers=global_buffers or {},
            memory_budget=memory_budget,
        )

    def coalition_loss(
        self,
        client_params: Tensor,
        masks: Tensor,
        global_params: Tensor,
        *,
        client_buffers: Mapping[str, Tensor] | None = None,
        global_buffers: Mapping[str, Tensor] | None = None,
        memory_budget: int = MEMORY_BUDGET,
    ) -> Tensor:
        """Return the mean loss of each coalition's mean model (see :meth:`coalition_accuracy`)."""
        return coalition_scores(
            self,
            client_params,
            masks,
            global_params,
            metric="loss",
            client_buffers=client_buffers or {},
            global_buffers=global_buffers or {},
            memory_budget=memory_budget,
        )

    def _zero_gradient(self) -> Tensor:
        """Return the vector ``[d]``, all zeros, into which a backward pass adds its gradient."""
        if self._flat_gradient is None:
            self._flat_gradient = torch.zeros_like(self._flat)
            for parameter, piece in _pieces(self._flat_gradient, self._parameters):
                parameter.grad = piece
        return self._flat_gradient.zero_()

    @contextmanager
    def _loaded(self, params: Tensor, buffers: Mapping[str, Tensor] | None) -> Iterator[None]:
        if params.shape != self._flat.shape:
            raise ValuationError(f"params has shape {list(params.shape)}, not [{self.num_params}]")
        unknown = [name for name in buffers or {} if name not in self._state]
        if unknown:
            raise ValuationError(f"buffers {unknown} are not in the model")
        with self._lock:
            self._load(params, buffers or {})
            yield

    @torch.no_grad()
    def _load(self, params: Tensor, others: Mapping[str, Tensor]) -> None:
        self._flat.copy_(params)
        for name, value in others.items():
            self._state[name].copy_(value)


def _flatten(parameters: list[nn.Parameter]) -> Tensor:
    """Make parameters views of one flat vector ``[d]``, and return it."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, piece in _pieces(flat, parameters):
        parameter.data = piece
    return flat


def _pieces(
    flat: Tensor, parameters: Sequence[nn.Parameter]
) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each parameter with its own part of ``flat`` [d], in its own shape."""
    start = 0
    for parameter in parameters:
        yield parameter, flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()


def _num_correct(outputs: Any, targets: Any, _size: int) -> Tensor:
    """Return how many answers are right; NaN where the targets are no class labels."""
    if (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    ):
        return (outputs.argmax(dim=1) == targets).sum().float()
    device = targets.device if isinstance(targets, Tensor) else None
    return torch.tensor(torch.nan, device=device)
