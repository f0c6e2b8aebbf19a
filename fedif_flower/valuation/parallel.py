"""Passes over held-out data: by one copy of the model, or by one for each core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Barrier, Lock
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fedif_flower.devices import fix_threads, widest_float
from fedif_flower.valuation.batch_weight import Batch
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.gradients import LossAndGradient
from fedif_flower.valuation.objective import Objective, PairObjective

Replica = TypeVar("Replica")
Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Below this many parameters times examples, several threads are not faster.
_WORTH_SHARING = 10_000_000
# Parameters of all replicas together for one pass: larger models keep the cores busy by themselves.
_MOST_REPLICATED = 32_000_000


class ReplicaPool(Generic[Replica]):
    """Threads that each use one core and work with a replica of their own.

    Whole models in parallel keep all cores busy where the operations inside one model are too
    small to be split, and no thread waits for a core that another process has taken.

    Parameters
    ----------
    replicas : sequence
        What the threads work with, at least one; no two threads use one at a time.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = tuple(replicas)
        self._free: SimpleQueue[Replica] = SimpleQueue()
        for replica in replicas:
            self._free.put(replica)
        self._executor = ThreadPoolExecutor(len(replicas), "validation-replica")
        threads, begun = torch.get_num_threads(), Barrier(len(replicas) + 1)
        for _ in replicas:
            self._executor.submit(_use_one_core, begun)
        begun.wait()
        # The call in a thread also set what later threads begin with.
        torch.set_num_threads(threads)

    @property
    def size(self) -> int:
        """How many replicas work at once."""
        return len(self.replicas)

    def map(self, work: Callable[[Replica, Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return ``work(replica, item)`` for each item, in their order."""

        def call(item: Item) -> Answer:
            replica = self._free.get()
            try:
                return work(replica, item)
            finally:
                self._free.put(replica)

        return list(self._executor.map(call, items))


def _use_one_core(begun: Barrier) -> None:
    fix_threads(1)
    begun.wait()


class Judge:
    """A copy of the model with the objective, in one thread at a time."""

    def __init__(self, model: FlatModel, objective: Objective) -> None:
        self.model, self.objective = model, objective

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.model.params.device

    def replica(self) -> Judge:
        """Return one with a model of its own."""
        return Judge(FlatModel(self.model.module, self.device), self.objective)

    def differentiate(self, batches: Sequence[Batch], total_weight: float) -> LossAndGradient:
        """Return what these batches add to the mean loss of the whole and to its gradient."""
        gradient = self.model.zero_gradient()
        # Half precision keeps three digits: the batches' gradients are then added up elsewhere.
        is_half = gradient.itemsize < 4
        total = torch.zeros_like(gradient, dtype=torch.float32) if is_half else gradient
        counted = [batch for batch in batches if batch.weight]
        losses = []
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
        module = self.model.module
        with self.model.evaluation_mode():
            found = [self.objective.figures(module, b.content, metrics) for b in batches]
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


class Judges:
    """A judge, and replicas of it for the cores, which are made when they are needed first.

    Parameters
    ----------
    first : Judge
        Decides what parameters and buffers the replicas have, where no others are given.
    """

    def __init__(self, first: Judge) -> None:
        self._first = first
        self._lock = Lock()
        self._of_a_pass, self._of_models = _Replicas(first), _Replicas(first)

    @contextmanager
    def alone(self) -> Iterator[Judge]:
        """Give the first judge to one thread; there is no pass meanwhile."""
        with self._lock:
            yield self._first

    def go_through(
        self,
        batches: Sequence[Batch],
        params: Tensor,
        buffers: Mapping[str, Tensor] | None,
        work: Callable[[Judge, Sequence[Batch]], Answer],
        metrics: Iterable[str],
    ) -> list[Answer]:
        """Return ``work(judge, batches)`` for parts of the batches, each on a core of its own.

        A pass over small batches keeps one core busy, and several only in part. Losses of
        ``batch_loss`` and scores of the user's own stay in one thread: they may keep a state.

        Parameters
        ----------
        batches : sequence of Batch
            At least one.
        params : Tensor
            ``[d]``.
        buffers : mapping of str to Tensor, optional
            Buffers and frozen parameters by name; those left out stay as they were.
        work : callable
            Given a judge with these parameters.
        metrics : iterable of str
            What it takes.

        Raises
        ------
        ValuationError
            If the length of ``params`` is not d, or a buffer is unknown.
        """
        threads = min(torch.get_num_threads(), len(batches))
        with self.alone() as first:
            model = first.model
            model.load(params, buffers or {})
            if (
                threads == 1
                or not self._is_worth_sharing(batches)
                or threads * model.params.numel() > _MOST_REPLICATED
                or not isinstance(first.objective, PairObjective)
                or not {"loss", "accuracy"}.issuperset(metrics)
            ):
                return [work(first, batches)]
            others = model.others

            def on(judge: Judge, part: Sequence[Batch]) -> Answer:
                judge.model.load(model.params, others)
                return work(judge, part)

            pool = self._of_a_pass.pool(threads)
            return pool.map(on, [batches[part::threads] for part in range(threads)])

    def side_by_side(self, batches: Sequence[Batch], at_most: int) -> ReplicaPool[Judge] | None:
        """Return judges with a thread each, for many models; ``None`` where one does as well.

        Parameters
        ----------
        batches : sequence of Batch
            What each of them is going to look at.
        at_most : int
            Replicas: more copies of the model would take too much memory.
        """
        threads = torch.get_num_threads()
        if self._first.device.type != "cpu" or threads == 1:
            return None
        wanted = threads if self._is_worth_sharing(batches) else 1
        pool = self._of_models.pool(max(min(wanted, at_most), 1))
        with self.alone() as first:
            for replica in pool.replicas:
                replica.model.load(first.model.params, first.model.state)
        return pool

    def _is_worth_sharing(self, batches: Sequence[Batch]) -> bool:
        """Tell whether a pass takes so long that several threads are faster."""
        size = self._first.model.params.numel() * sum(batch.size for batch in batches)
        return self._first.device.type == "cpu" and size >= _WORTH_SHARING


class _Replicas:
    """A pool of replicas of one judge, made when it is needed first."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._made: ReplicaPool[Judge] | None = None
        self._lock = Lock()

    def pool(self, size: int) -> ReplicaPool[Judge]:
        """Return ``size`` replicas."""
        with self._lock:
            if self._made is None or self._made.size != size:
                self._made = ReplicaPool([self._judge.replica() for _ in range(size)])
            return self._made
