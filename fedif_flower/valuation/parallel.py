"""Passes over held-out data: by one copy of the model, by one for each core, in the background."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from threading import Barrier, Lock, local
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from fedif_flower.devices import fix_threads, widest_float
from fedif_flower.errors import DivergedError
from fedif_flower.round import all_finite
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.objective import Batch, Objective, PairObjective

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Buffers = Mapping[str, Tensor] | None  # And frozen parameters, by name.

# Below this many parameters times examples, several threads are not faster.
_WORTH_SHARING = 10_000_000
# Parameters of all replicas together for one pass: larger models keep the cores busy by themselves.
_MOST_REPLICATED = 32_000_000


class LossAndGradient(NamedTuple):
    """The mean loss at a model and its gradient ``[d]``, from one pass over the data."""

    loss: float
    gradient: Tensor

    def checked(self) -> LossAndGradient:
        """Return both, or raise DivergedError if the gradient is not finite."""
        if not all_finite(self.gradient):
            raise DivergedError("the validation gradient is not finite: the model has diverged")
        return self


class Judge:
    """A copy of the model with the objective, in one thread at a time."""

    def __init__(self, model: FlatModel, objective: Objective) -> None:
        self.model, self.objective = model, objective
        self.device = model.params.device

    def replica(self) -> Judge:
        """Return one with a model of its own."""
        return Judge(FlatModel(self.model.module, self.device), self.objective)

    def differentiate(self, batches: Sequence[Batch], total_weight: float) -> LossAndGradient:
        """Return what these batches add to the mean loss of the whole and to its gradient."""
        gradient = self.model.zero_gradient()
        # Half precision keeps three digits: the batches' gradients are then added up elsewhere.
        is_half = gradient.itemsize < 4
        total = torch.zeros_like(gradient, dtype=torch.float32) if is_half else gradient
        losses = []
        counted = [batch for batch in batches if batch.weight]
        for batch in counted:
            share = batch.weight / total_weight
            loss = self.objective.loss(self.model.module, batch.content)
            (loss if is_half else loss * share).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            if is_half:
                total.add_(gradient, alpha=share)
                gradient.zero_()
        values = torch.stack(losses).tolist() if losses else []
        mean = sum(v * b.weight for v, b in zip(values, counted, strict=True)) / total_weight
        return LossAndGradient(mean, total if is_half else total.clone())

    def sum(self, batches: Sequence[Batch], metrics: Sequence[str]) -> Tensor:
        """Return each metric's sum over these batches, ``[len(metrics)]``."""
        module, dtype = self.model.module, widest_float(self.device)
        with self.model.evaluation_mode():
            found = [self.objective.figures(module, b.content, metrics) for b in batches]
            sums = torch.zeros(len(metrics), dtype=dtype, device=self.device)
            for i, metric in enumerate(metrics):
                # Right answers are counted; of losses and scores there are means.
                weights = [
                    1 if metric == "accuracy" else b.weight if metric == "loss" else b.size
                    for b in batches
                ]
                # Where no target counts, the mean is 0 / 0.
                pairs = [(f[i], w) for f, w in zip(found, weights, strict=True) if w]
                if pairs:  # No half precision rounds their sum.
                    values = torch.stack([value for value, _ in pairs]).to(self.device, dtype)
                    sums[i] = torch.dot(values, values.new_tensor([w for _, w in pairs]))
        return sums


class JudgePool:
    """Threads that each use one core and work with a judge of their own.

    Whole models in parallel keep all cores busy where the operations inside one model are too
    small to be split, and no thread waits for a core that another process has taken.

    Parameters
    ----------
    judges : sequence of Judge
        At least one; no two threads use one at a time.
    """

    def __init__(self, judges: Sequence[Judge]) -> None:
        self.judges = tuple(judges)
        # Threads hold what begins them, but not the pool: they end with it.
        self._own = own = local()
        waiting, begun = iter(self.judges), Barrier(len(judges) + 1)

        def begin() -> None:
            fix_threads(1)
            own.judge = next(waiting)
            begun.wait()

        self._executor = ThreadPoolExecutor(len(judges), "validation-replica", initializer=begin)
        threads = torch.get_num_threads()
        for _ in judges:
            self._executor.submit(bool)
        begun.wait()
        # The call in a thread also set what later threads begin with.
        torch.set_num_threads(threads)

    def map(self, work: Callable[[Judge, Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return ``work(judge, item)`` for each item, in their order."""
        return list(self._executor.map(lambda item: work(self._own.judge, item), items))


class SharedGradients:
    """Takes the gradients that several parts of a server need while the clients train.

    Work is done in the order in which it was begun, by one thread.

    Parameters
    ----------
    loss_and_gradient : callable
        Takes a model's parameters ``[d]`` and named buffers, such as
        :meth:`~fedif_flower.valuation.validation.Validation.loss_and_gradient`.
    """

    def __init__(self, loss_and_gradient: Callable[[Tensor, Buffers], LossAndGradient]) -> None:
        self._loss_and_gradient = loss_and_gradient
        # A thread starts with the number of torch threads that is set at that moment. Unless it
        # is fixed now, the gradient's last bits depend on what else runs.
        self._threads = torch.get_num_threads()
        # Of the last two models: a step leads from one to the other.
        self._begun: deque[tuple[Tensor, Future[LossAndGradient]]] = deque(maxlen=2)

    def begin(self, params: Tensor, buffers: Buffers) -> Future[LossAndGradient]:
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

    def submit(self, function: Callable[[], Answer]) -> Future[Answer]:
        """Let the thread do something more."""
        return self._executor.submit(function)

    @cached_property
    def _executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(
            1, "validation-gradient", initializer=fix_threads, initargs=(self._threads,)
        )


class Passes:
    """Passes over held-out batches, by one judge or by replicas of it for the cores.

    Replicas are made when they are needed first, and shared by copies of this object.

    Attributes
    ----------
    judge : Judge
        The copy of the model, and the objective. It decides what parameters and buffers replicas
        have, where no others are given.
    batches : list of Batch
        The data, with the size of each batch.
    metrics : frozenset of str
        What is defined on them.
    num_examples, total_weight : float
        How many examples count, and what the mean of their losses divides by.
    """

    metrics: frozenset[str]

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self._lock = Lock()
        self._pool_lock, self._pools = Lock(), dict[str, JudgePool]()

    def hold(self, batches: Iterable[Batch]) -> None:
        """Take these batches for all of the data."""
        self.batches = list(batches)
        self.num_examples = sum(batch.size for batch in self.batches)
        self.total_weight = sum(batch.weight for batch in self.batches)

    def part(self, contents: Iterable[Any]) -> Self:
        """Return the same on batches of the same kind, with this model."""
        other = copy.copy(self)
        vars(other).pop("gradients", None)  # What is of all of the data.
        with self.alone() as judge, torch.no_grad():
            other.hold([judge.objective.sized(judge.model.module, own) for own in contents])
        return other

    @contextmanager
    def alone(self) -> Iterator[Judge]:
        """Give the judge to the calling thread; there is no other pass meanwhile."""
        with self._lock:
            yield self.judge

    def side_by_side(self, at_most: int) -> JudgePool | None:
        """Return judges with a thread each, for many models; ``None`` where one does as well.

        Parameters
        ----------
        at_most : int
            Replicas: more copies of the model would take too much memory.
        """
        threads = torch.get_num_threads()
        if self.judge.device.type != "cpu" or threads == 1:
            return None
        wanted = threads if self._is_worth_sharing() else 1
        pool = self._pool("models", max(min(wanted, at_most), 1))
        with self.alone() as first:
            for judge in pool.judges:
                judge.model.load(first.model.params, first.model.state)
        return pool

    def _go_through(
        self,
        params: Tensor,
        buffers: Buffers,
        work: Callable[[Judge, Sequence[Batch]], Answer],
        metrics: Iterable[str],
    ) -> list[Answer]:
        """Return ``work(judge, batches)`` for parts of the batches, each on a core of its own.

        A pass over small batches keeps one core busy, and several only in part. Losses of
        ``batch_loss`` and scores of the user's own stay in one thread: they may keep a state.

        Parameters
        ----------
        params : Tensor
            ``[d]``.
        buffers : mapping of str to Tensor, optional
            Buffers and frozen parameters by name; those left out stay as they were.
        work : callable
            Given a judge with these parameters.
        metrics : iterable of str
            What it takes.
        """
        threads = min(torch.get_num_threads(), len(self.batches))
        with self.alone() as first:
            model = first.model
            model.load(params, buffers or {})
            if (
                threads == 1
                or not self._is_worth_sharing()
                or threads * model.params.numel() > _MOST_REPLICATED
                or not isinstance(first.objective, PairObjective)
                or not {"loss", "accuracy"}.issuperset(metrics)
            ):
                return [work(first, self.batches)]
            others = model.others

            def on(judge: Judge, part: int) -> Answer:
                judge.model.load(model.params, others)
                return work(judge, self.batches[part::threads])

            return self._pool("pass", threads).map(on, range(threads))

    def _is_worth_sharing(self) -> bool:
        """Tell whether a pass takes so long that several threads are faster."""
        size = self.judge.model.params.numel() * sum(batch.size for batch in self.batches)
        return self.judge.device.type == "cpu" and size >= _WORTH_SHARING

    def _pool(self, purpose: str, size: int) -> JudgePool:
        """Return ``size`` replicas of the judge or more, made when they are needed first."""
        with self._pool_lock:
            if purpose not in self._pools or len(self._pools[purpose].judges) < size:
                self._pools[purpose] = JudgePool([self.judge.replica() for _ in range(size)])
            return self._pools[purpose]
