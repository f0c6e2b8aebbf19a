"""Passes over held-out data: by one copy of the model, by one for each core, in the background."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from threading import Barrier, Lock, local
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from fedif_flower.arithmetic import all_finite
from fedif_flower.devices import fix_threads, widest_float
from fedif_flower.errors import DivergedError
from fedif_flower.seeding import derive_seed
from fedif_flower.tasks.dtypes import is_half
from fedif_flower.tasks.modules import own_randomness, seed_all
from fedif_flower.tasks.task import LossFunction
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.gathered import OutputsAndTargets, gather, on_cpu
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
    """A copy of the model with the objective, in one thread at a time.

    Parameters
    ----------
    model : FlatModel
        The copy.
    objective : Objective
        Loss and scores.
    whole : frozenset of str
        The scores that are taken once, of the outputs for all examples; others are means over
        batches.
    is_random : bool
        Whether model or functions draw at random. Each batch then has a random state of its own,
        the same in every pass: two models differ by their parameters alone. A pass has to be within
        :func:`~fedif_flower.tasks.modules.own_randomness`, and in one thread.
    """

    def __init__(
        self,
        model: FlatModel,
        objective: Objective,
        *,
        whole: frozenset[str] = frozenset(),
        is_random: bool = False,
    ) -> None:
        self.model = model
        self.objective = objective
        self.whole = whole
        self.is_random = is_random
        self.device = model.params.device

    def replica(self) -> Judge:
        """Return a judge with the same objective and a model of its own."""
        model = FlatModel(self.model.module, self.device)
        return Judge(model, self.objective, whole=self.whole, is_random=self.is_random)

    def _in_turn(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """Yield batches, each when the random state is its own."""
        for number, batch in enumerate(batches):
            if self.is_random:
                seed_all(derive_seed("validation-batch", 0, number), self.device)
            yield batch

    @torch.enable_grad()  # Whoever asks may evaluate without gradients.
    def differentiate(self, batches: Sequence[Batch], total_weight: float) -> LossAndGradient:
        """Return what these batches add to the mean loss of the whole and to its gradient."""
        gradient = self.model.zero_gradient()
        # Half precision keeps three digits: the batches' gradients are then added up elsewhere.
        is_added_apart = is_half(gradient)
        total = gradient
        if is_added_apart:
            total = torch.zeros_like(gradient, dtype=torch.float32)
        losses = []
        weights = []
        for batch in self._in_turn(batches):
            if not batch.weight:
                continue
            share = batch.weight / total_weight
            loss = self.objective.loss(self.model.module, batch.content)
            if is_added_apart:
                loss.backward()  # type: ignore[no-untyped-call]
                total.add_(gradient, alpha=share)
                gradient.zero_()
            else:
                (loss * share).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            weights.append(batch.weight)
        # All at once: each number read from another device waits for the work there.
        values = torch.stack(losses).tolist() if losses else []
        weighted = [value * weight for value, weight in zip(values, weights, strict=True)]
        if not is_added_apart:
            total = total.clone()  # The next pass writes into the model's own gradient.
        return LossAndGradient(sum(weighted) / total_weight, total)

    @torch.enable_grad()
    def differentiate_by(
        self, losses: Sequence[LossFunction], batches: Sequence[Batch], total_weight: float
    ) -> list[Tensor]:
        """Return what these batches add to the gradient ``[d]`` of each of several mean losses.

        They are taken of the same outputs: one pass forward serves them all. Gradients are at
        least in float32.
        """
        parameters = self.model.parameters
        wide = torch.promote_types(self.model.params.dtype, torch.float32)
        totals = [torch.zeros_like(self.model.params, dtype=wide) for _ in losses]
        for batch in self._in_turn(batches):
            if not batch.weight:
                continue
            share = batch.weight / total_weight
            outputs, targets = self.objective.metric_arguments(self.model.module, batch.content)
            for place, loss_fn in enumerate(losses):
                pieces = torch.autograd.grad(
                    loss_fn(outputs, targets),
                    parameters,
                    retain_graph=place + 1 < len(losses),
                    materialize_grads=True,
                )
                gradient = torch.cat([piece.reshape(-1) for piece in pieces])  # [d]
                totals[place].add_(gradient.to(wide), alpha=share)
        return totals

    def sum(self, batches: Sequence[Batch], metrics: Sequence[str]) -> Tensor:
        """Return each metric's sum over these batches, ``[len(metrics)]``.

        A score that is taken of all examples at once stands there itself.

        Raises
        ------
        NotGatheredError
            If there is such a score, and outputs or targets cannot be put one after the other.
        """
        by_batch = [metric for metric in metrics if metric not in self.whole]
        at_once = [metric for metric in metrics if metric in self.whole]
        figures: list[list[Tensor]] = []
        pieces: list[OutputsAndTargets] = []
        with self.model.evaluation_mode():
            for batch in self._in_turn(batches):
                arguments = self.objective.metric_arguments(self.model.module, batch.content)
                figures.append(self.objective.metric_figures(arguments, by_batch))
                if at_once:
                    pieces.append(on_cpu(arguments, self.objective.class_mean))
            sums: dict[str, Tensor] = {}
            for place, metric in enumerate(by_batch):
                column = [row[place] for row in figures]  # A figure of each batch.
                sums[metric] = self._weighted_sum(column, batches, metric)
            if at_once:
                scores = self.objective.metric_figures(gather(pieces), at_once)
                sums.update(zip(at_once, scores, strict=True))
            return torch.stack([self._widest(sums[metric]) for metric in metrics])

    def _weighted_sum(
        self, values: Sequence[Tensor], batches: Sequence[Batch], metric: str
    ) -> Tensor:
        """Return the sum of a metric's values, one of each batch, times the batch's weight."""
        counted = []
        weights = []
        for value, batch in zip(values, batches, strict=True):
            weight = _weight(batch, metric)
            if weight:  # Where no target counts, the mean is 0 / 0.
                counted.append(value)
                weights.append(weight)
        if not counted:
            return torch.zeros(())
        # No half precision rounds their sum.
        column = self._widest(torch.stack(counted))
        return torch.dot(column, column.new_tensor(weights))

    def _widest(self, values: Tensor) -> Tensor:
        """Return values on the judge's device, in its widest floating-point type."""
        return values.to(self.device, widest_float(self.device))


def _weight(batch: Batch, metric: str) -> float:
    """Return how often a batch's figure counts in the sum."""
    if metric == "accuracy":
        return 1.0  # It is a number of right answers; losses and scores are means.
    if metric == "loss":
        return batch.weight
    return batch.size


class JudgePool:
    """Threads that each use one core and work with a judge of their own.

    Whole models in parallel keep all cores busy where the operations inside one model are too
    small to be split, and no thread waits for a core that another process has taken.

    Parameters
    ----------
    judges : sequence of Judge
        At least one; no two threads use one at a time.

    Attributes
    ----------
    lock : Lock
        Is held by whoever loads models into the judges, until they have answered.
    """

    def __init__(self, judges: Sequence[Judge]) -> None:
        self.judges = tuple(judges)
        # Threads hold what begins them, but not the pool: they end with it.
        of_thread = local()
        free_judges = iter(self.judges)
        all_begun = Barrier(len(judges) + 1)

        def begin() -> None:
            fix_threads(1)
            of_thread.judge = next(free_judges)
            all_begun.wait()

        self._of_thread = of_thread
        self.lock = Lock()  # Of who uses the judges.
        self._executor = ThreadPoolExecutor(len(judges), "validation-replica", initializer=begin)
        threads = torch.get_num_threads()
        # The pool starts a thread for each thing to do, until it has them all.
        for _ in judges:
            self._executor.submit(bool)
        all_begun.wait()
        # The call in a thread also set what later threads begin with.
        torch.set_num_threads(threads)

    def map(self, work: Callable[[Judge, Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return ``work(judge, item)`` for each item, in their order."""
        return list(self._executor.map(lambda item: work(self._of_thread.judge, item), items))


class SharedGradients:
    """Takes the gradients that several parts of a server need while the clients train.

    Work is done in the order in which it was begun, by one thread.

    Parameters
    ----------
    loss_and_gradient : callable
        Takes a model's parameters ``[d]`` and named buffers, such as
        :meth:`~fedif_flower.valuation.validation.Validation.loss_and_gradient`.
    in_background : bool
        ``False``: work is done at once, by whoever begins it. The random state is the process's:
        clients that train in it meanwhile would draw from the one that a pass has set.
    """

    def __init__(
        self,
        loss_and_gradient: Callable[[Tensor, Buffers], LossAndGradient],
        *,
        in_background: bool = True,
    ) -> None:
        self._loss_and_gradient = loss_and_gradient
        self._in_background = in_background
        # A thread starts with the number of torch threads that is set at that moment. Unless it
        # is fixed now, the gradient's last bits depend on what else runs.
        self._threads = torch.get_num_threads()
        # For the last two models: a step leads from one to the other. Another strategy may begin
        # with its own meanwhile: a tuple that is looked through stays as it is.
        self._begun: tuple[tuple[Tensor, Future[LossAndGradient]], ...] = ()

    def begin(self, params: Tensor, buffers: Buffers) -> Future[LossAndGradient]:
        """Begin with loss and gradient at a model, unless it is one of the last two begun with.

        Parameters
        ----------
        params : Tensor
            ``[d]``; the model is known by this very tensor, which must not change any more.
        buffers : mapping of str to Tensor, optional
            As in :meth:`~fedif_flower.valuation.validation.Validation.gradient`.
        """
        for earlier_params, future in self._begun:
            if earlier_params is not params:
                continue
            has_failed = future.done() and future.exception() is not None
            if not has_failed:
                return future
        future = self.submit(lambda: self._loss_and_gradient(params, buffers).checked())
        self._begun = (*self._begun[-1:], (params, future))
        return future

    def submit(self, function: Callable[[], Answer]) -> Future[Answer]:
        """Let the thread do something more."""
        if self._in_background:
            return self._executor.submit(function)
        done: Future[Answer] = Future()
        try:
            done.set_result(function())
        except Exception as error:  # It is raised where the result is asked for.
            done.set_exception(error)
        return done

    @cached_property
    def _executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(
            1, "validation-gradient", initializer=fix_threads, initargs=(self._threads,)
        )


class Passes:
    """Passes over held-out batches, by one judge or by replicas of it for the cores.

    It is the part of a :class:`~fedif_flower.valuation.validation.Validation` that knows threads,
    replicas and random states, but no user's functions. The files that cut a held-out set into
    parts take it for the set: Validation imports them, so that they cannot import Validation.

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
        self._pool_lock = Lock()
        self._pools: dict[str, JudgePool] = {}

    def hold(self, batches: Iterable[Batch]) -> None:
        """Take these batches for all of the data."""
        self.batches = list(batches)
        self.num_examples = sum(batch.size for batch in self.batches)
        self.total_weight = sum(batch.weight for batch in self.batches)

    def part(self, contents: Iterable[Any]) -> Self:
        """Return the same on batches of the same kind, with this model."""
        other = copy.copy(self)
        vars(other).pop("gradients", None)  # They were taken on all of the data.
        with self.alone() as judge, torch.no_grad():
            module = judge.model.module
            other.hold([judge.objective.batch_with_size(module, content) for content in contents])
        return other

    @contextmanager
    def alone(self) -> Iterator[Judge]:
        """Give the judge to the calling thread; there is no other pass meanwhile."""
        # The random state is asked for first: who trains with it may ask for the judge.
        with self._own_randomness(), self._lock:
            yield self.judge

    def _own_randomness(self) -> AbstractContextManager[None]:
        if not self.judge.is_random:
            return nullcontext()
        return own_randomness(0, self.judge.device)

    @contextmanager
    def side_by_side(self, metric: str, at_most: int) -> Iterator[JudgePool | None]:
        """Give judges with a thread each, for many models, to nobody else meanwhile.

        ``None`` where one judge is as fast.

        Parameters
        ----------
        metric : str
            What is taken of the models.
        at_most : int
            Replicas: more copies of the model would take too much memory.
        """
        threads = torch.get_num_threads()
        if self.judge.device.type != "cpu" or threads == 1 or self.judge.is_random:
            yield None
            return
        size = 1
        purpose = "models one by one"
        if self._is_worth_sharing() and self._may_be_shared([metric]):
            size = max(min(threads, at_most), 1)
            purpose = "models"
        pool = self._pool(purpose, size)
        with pool.lock:
            with self.alone() as first:
                for judge in pool.judges:
                    judge.model.load(first.model.params, first.model.state)
            yield pool

    def _go_through(
        self,
        params: Tensor,
        buffers: Buffers,
        work: Callable[[Judge, Sequence[Batch]], Answer],
        metrics: Iterable[str],
    ) -> list[Answer]:
        """Return ``work(judge, batches)`` for parts of the batches, each on a core of its own.

        A pass over small batches keeps one core busy, and several only in part. Losses of
        ``batch_loss`` and scores of the user's own stay in one thread: they may keep a state, or be
        taken of all examples at once. So does a model that draws at random.

        Parameters
        ----------
        params : Tensor
            ``[d]``.
        buffers : mapping of str to Tensor, optional
            Buffers and frozen parameters by name; those left out stay as they were.
        work : callable
            Is called with a judge that has these parameters, and with some of the batches.
        metrics : iterable of str
            The metrics that it takes.
        """
        threads = min(torch.get_num_threads(), len(self.batches))
        with self.alone() as first:
            model = first.model
            model.load(params, buffers or {})
            if not self._is_shared(threads, metrics):
                return [work(first, self.batches)]
            others = model.others

            def on(judge: Judge, part: int) -> Answer:
                judge.model.load(model.params, others)
                return work(judge, self.batches[part::threads])

            return self._pool("pass", threads).map(on, range(threads))

    def _is_shared(self, threads: int, metrics: Iterable[str]) -> bool:
        """Tell whether several threads may take a pass for these metrics, and are faster."""
        if threads == 1 or self.judge.is_random or not self._is_worth_sharing():
            return False
        if threads * self.judge.model.params.numel() > _MOST_REPLICATED:
            return False
        return self._may_be_shared(metrics)

    def _may_be_shared(self, metrics: Iterable[str]) -> bool:
        """Tell whether several threads may take these metrics at once.

        Losses of ``batch_loss`` and scores of the user's own may not: they may keep a state.
        """
        if not isinstance(self.judge.objective, PairObjective):
            return False
        return {"loss", "accuracy"}.issuperset(metrics)

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
