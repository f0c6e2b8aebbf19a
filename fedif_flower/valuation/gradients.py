"""Gradients of one validation set, taken in the background, and each model's only once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedif_flower.devices import fix_threads
from fedif_flower.errors import DivergedError
from fedif_flower.round import all_finite

T = TypeVar("T")


class LossAndGradient(NamedTuple):
    """The mean loss at a model and its gradient ``[d]``, from one pass over the data."""

    loss: float
    gradient: Tensor

    def checked(self) -> LossAndGradient:
        """Return both, or raise DivergedError if the gradient is not finite."""
        if not all_finite(self.gradient):
            raise DivergedError("the validation gradient is not finite: the model has diverged")
        return self


class SharedGradients:
    """Takes the gradients that several parts of a server need while the clients train.

    Work is done in the order in which it was begun, by one thread.

    Parameters
    ----------
    loss_and_gradient : callable
        Takes a model's parameters ``[d]`` and named buffers, such as
        :meth:`~fedif_flower.valuation.validation.Validation.loss_and_gradient`.
    """

    def __init__(
        self, loss_and_gradient: Callable[[Tensor, Mapping[str, Tensor] | None], LossAndGradient]
    ) -> None:
        self._loss_and_gradient = loss_and_gradient
        # A thread starts with the number of torch threads that is set at that moment. Unless it
        # is fixed now, the gradient's last bits depend on what else runs.
        self._threads = torch.get_num_threads()
        # Of the last two models: a step leads from one to the other.
        self._begun: deque[tuple[Tensor, Future[LossAndGradient]]] = deque(maxlen=2)

    def begin(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None
    ) -> Future[LossAndGradient]:
        """Begin with loss and gradient at a model, unless it is one of the last two begun with.

        Parameters
        ----------
        params : Tensor
            ``[d]``; the model is known by this very tensor, which must not change any more.
        buffers : mapping of str to Tensor, optional
            As in :meth:`~fedif_flower.valuation.validation.Validation.gradient`.
        """
        for known, future in self._begun:
            if known is params and not (future.done() and future.exception()):
                return future
        taken = self.submit(lambda: self._loss_and_gradient(params, buffers).checked())
        self._begun.append((params, taken))
        return taken

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Let the thread do something more."""
        return self._executor.submit(function)

    @cached_property
    def _executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(
            1, "validation-gradient", initializer=fix_threads, initargs=(self._threads,)
        )
