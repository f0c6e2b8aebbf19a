"""Passes over held-out data: with one copy of the model, one for each core, in the background."""

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
from fedif_flower.devices import fix_threads
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
Buffers = Mapping[str, Tensor] | None  # Buffers and frozen parameters, by name.

# Below this many parameters times examples, several threads are not faster.
_WORTH_SHARING = 10_000_000
# The most parameters of all replicas together, for one pass: larger models keep the cores busy by
# themselves.
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
    """A copy of the model with the objective. One thread at a time uses it.

    Parameters
    ----------
    model : FlatModel
        The copy.
    objective : Objective
        Loss and scores.
    whole : frozenset of str
        The scores that are computed once, of the outputs for all examples; the others are means
        over batches.
    is_random : bool
        Whether model, loss or scores draw at random. Each batch then has a random state of its own,
        the same in every pass, so that results for two models differ by their parameters alone. A
        pass has to be within :func:`~fedif_flower.tasks.modules.own_randomness`, in one thread.
    """

    def __init__(
        self,
        model: FlatModel,
        objective: Objective,
        *,
        whole: frozenset[str],
        is_random: bool,
    ) -> None:
        self.model = model
        self.objective = objective
        self.whole = whole
        self.is_random = is_random
        self.device = model.params.device
        # Half precision has three digits: then the batches' gradients are added up in float32.
        self._adds_gradients_apart = is_half(model.params)
        # Sums are taken in the widest type of the device; MPS has no float64.
        self._sum_dtype = torch.float64
        if self.device.type == "mps":
            self._sum_dtype = torch.float32

    def replica(self) -> Judge:
        """Return a judge with the same objective and a model of its own."""
        model = self.model.replica()
        return Judge(model, self.objective, whole=self.whole, is_random=self.is_random)

    def _in_turn(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """Yield batches one by one; if the judge is random, seed the random state of each first."""
        for number, batch in enumerate(batches):
            if self.is_random:
                seed_all(derive_seed("validation-batch", 0, number), self.device)
            yield batch

    @torch.enable_grad()  # The caller may be in a context without gradients.
    def differentiate(self, batches: Sequence[Batch], total_weight: float) -> LossAndGradient:
        """Return what these batches add to the mean loss over all data, and to its gradient.

        ``total_weight`` is what the mean over all data divides by.
        """
        gradient = self.model.zero_gradient()
        total = gradient
        if self._adds_gradients_apart:
            total = torch.zeros_like(gradient, dtype=torch.float32)
        losses = []
        weights = []
        for batch in self._in_turn(batches):
            if not batch.weight:
                continue
            share = batch.weight / total_weight
            loss = self.objective.loss(self.model.module, batch.content)
            if self._adds_gradients_apart:
                loss.backward()  # type: ignore[no-untyped-call]
                total.add_(gradient, alpha=share)
                gradient.zero_()
            else:
                (loss * share).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            weights.append(batch.weight)
        # All losses are read at once: each read from another device waits for the work there.
        values = torch.stack(losses).tolist() if losses else []
        weighted = [value * weight for value, weight in zip(values, weights, strict=True)]
        if not self._adds_gradients_apart:
            total = total.clone()  # The next pass writes into the model's own gradient.
        return LossAndGradient(sum(weighted) / total_weight, total)

    @torch.enable_grad()
    def differentiate_by(
        self, losses: Sequence[LossFunction], batches: Sequence[Batch], total_weight: float
    ) -> list[Tensor]:
        """Return what these batches add to the gradient ``[d]`` of each of several mean losses.

        All losses take the same outputs, so that one forward pass serves them all. Gradients are
        at least in float32. ``total_weight`` is what the means over all data divide by.
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
                # The gradients of an embedding may be sparse.
                gradient = torch.cat([piece.to_dense().reshape(-1) for piece in pieces])  # [d]
                totals[place].add_(gradient.to(wide), alpha=share)
        return totals

    def sum(self, batches: Sequence[Batch], metrics: Sequence[str]) -> Tensor:
        """Return each metric's sum over these batches, ``[len(metrics)]``.

        For a score that is computed of all examples at once, it is the score itself.

        Raises
        ------
        NotGatheredError
            If there is such a score, and the batches' outputs or targets cannot be joined.
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
                column = [row[place] for row in figures]  # One figure for each batch.
                sums[metric] = self._weighted_sum(column, batches, metric)
            if at_once:
                scores = self.objective.metric_figures(gather(pieces), at_once)
                sums.update(zip(at_once, scores, strict=True))
            return torch.stack([self._widest(sums[metric]) for metric in metrics])

    def _weighted_sum(
        self, values: Sequence[Tensor], batches: Sequence[Batch], metric: str
    ) -> Tensor:
        """Return the sum of a metric's values, one for each batch, times the batches' weights."""
        counted = []
        weights = []
        for value, batch in zip(values, batches, strict=True):
            weight = _weight(batch, metric)
            if weight:  # In a batch where no target counts, the mean is 0 / 0.
                counted.append(value)
                weights.append(weight)
        if not counted:
            return torch.zeros(())
        # In the widest type, since half precision would round the sum.
        column = self._widest(torch.stack(counted))
        return torch.dot(column, column.new_tensor(weights))

    def _widest(self, values: Tensor) -> Tensor:
        """Return values on the judge's device, in its widest floating-point type."""
        return values.to(self.device, self._sum_dtype)


def _weight(batch: Batch, metric: str) -> float:
    """Return the weight of a batch's figure in the sum over batches."""
    if metric == "accuracy":
        return 1.0  # The figure is already a sum, of right answers; losses and scores are means.
    if metric == "loss":
        return batch.weight
    return batch.size


class JudgePool:
    """Threads that each use one core and work with a judge of their own.

    Several models evaluated in parallel keep all cores busy, where the operations inside one model
    are too small to be split. No thread has to wait for a core that another process has taken.

    Parameters
    ----------
    judges : sequence of Judge
        At least one. Each is used by one thread only.

    Attributes
    ----------
    lock : Lock
        A caller holds it from loading models into the judges until it has all results.
    """

    def __init__(self, judges: Sequence[Judge]) -> None:
        self.judges = tuple(judges)
        # `begin` refers to local variables, not to the pool: threads keep alive what they refer to,
        # and the pool has to go once nobody uses it, since its threads end with it.
        per_thread = local()
        free_judges = iter(self.judges)
        all_begun = Barrier(len(judges) + 1)

        def begin() -> None:
            fix_threads(1)
            per_thread.judge = next(free_judges)
            all_begun.wait()

        self._per_thread = per_thread
        self.lock = Lock()
        self._executor = ThreadPoolExecutor(len(judges), "validation-replica", initializer=begin)
        threads = torch.get_num_threads()
        # The executor starts one thread for each task while no thread is idle. The tasks do
        # nothing; the barrier makes each thread wait until all of them have started.
        try:
            for _ in judges:
                self._executor.submit(bool)
        except BaseException:
            all_begun.abort()  # Threads that have begun would wait for the others for ever.
            raise
        all_begun.wait()
        # `fix_threads` in a thread also changed the number with which later threads begin.
        torch.set_num_threads(threads)

    def map(self, work: Callable[[Judge, Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return ``work(judge, item)`` for each item, in the items' order."""
        return list(self._executor.map(lambda item: work(self._per_thread.judge, item), items))


class SharedGradients:
    """Computes the gradients that several parts of a server need, while the clients train.

    One thread does the work, in the order in which it was begun.

    Parameters
    ----------
    loss_and_gradient : callable
        Takes a model's parameters ``[d]`` and named buffers, such as
        :meth:`~fedif_flower.valuation.validation.Validation.loss_and_gradient`.
    in_background : bool
        ``False``: work is done at once, in the thread that begins it. That is for a model that
        draws at random. A pass sets the random state of the whole process, and clients that train
        in this process meanwhile would draw from it.
    """

    def __init__(
        self,
        loss_and_gradient: Callable[[Tensor, Buffers], LossAndGradient],
        *,
        in_background: bool,
    ) -> None:
        self._loss_and_gradient = loss_and_gradient
        self._in_background = in_background
        # A thread starts with the number of torch threads that is set at that moment. If it were
        # not fixed now, the gradient's last bits would depend on what else runs.
        self._threads = torch.get_num_threads()
        # The last two models and their results: a step leads from one to the other. It is a tuple
        # that is replaced as a whole, since another thread may begin with its model meanwhile.
        self._begun: tuple[tuple[Tensor, Future[LossAndGradient]], ...] = ()

    def begin(self, params: Tensor, buffers: Buffers) -> Future[LossAndGradient]:
        """Begin to compute loss and gradient at a model, unless it is one of the last two.

        Parameters
        ----------
        params : Tensor
            ``[d]``. The model is recognised by this very tensor, which must not change any more.
        buffers : mapping of str to Tensor, optional
            As in :meth:`~fedif_flower.valuation.validation.Validation.gradient`.

        Returns
        -------
        Future of LossAndGradient
            It raises DivergedError if the gradient is not finite. What has failed is computed anew
            when it is begun once more.
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
        """Let the thread call a function after the work that was begun before."""
        if self._in_background:
            return self._executor.submit(function)
        done: Future[Answer] = Future()
        try:
            done.set_result(function())
        except Exception as error:  # It is raised where the result is read, as from a thread.
            done.set_exception(error)
        return done

    @cached_property
    def _executor(self) -> ThreadPoolExecutor:
        """The one thread, which starts with the first work."""
        return ThreadPoolExecutor(
            1, "validation-gradient", initializer=fix_threads, initargs=(self._threads,)
        )


class Passes:
    """Passes over held-out batches, by one judge, or by replicas of it that each use one core.

    It is the part of a :class:`~fedif_flower.valuation.validation.Validation` that handles threads,
    replicas and random states, but not the user's functions. Functions that cut a held-out set into
    parts have this class as the type of the set: Validation imports them, so that they cannot
    import Validation.

    Replicas are made when they are first needed, and shared by copies of this object.

    Attributes
    ----------
    judge : Judge
        The copy of the model, and the objective. Replicas have its parameters and buffers where no
        others are given.
    batches : list of Batch
        The data, with the size of each batch.
    metrics : frozenset of str
        The metrics that are defined on the data.
    num_examples, total_weight : float
        How many examples have a target, and what the mean of their losses divides by.
    """

    metrics: frozenset[str]

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self._lock = Lock()
        self._pool_lock = Lock()
        self._pools: dict[str, JudgePool] = {}

    def hold(self, batches: Iterable[Batch]) -> None:
        """Make these batches all of the data, and add up their sizes."""
        self.batches = list(batches)
        self.num_examples = sum(batch.size for batch in self.batches)
        self.total_weight = sum(batch.weight for batch in self.batches)

    def with_batches(self, contents: Iterable[Any]) -> Self:
        """Return a copy of this object with other batches of the same kind, and the same model."""
        other = copy.copy(self)
        vars(other).pop("gradients", None)  # This object's gradients are those on its own data.
        with self.alone() as judge, torch.no_grad():
            module = judge.model.module
            other.hold([judge.objective.batch_with_size(module, content) for content in contents])
        return other

    @contextmanager
    def alone(self) -> Iterator[Judge]:
        """Give the judge to the calling thread; no other thread has it meanwhile."""
        seeded_draws: AbstractContextManager[None] = nullcontext()
        if self.judge.is_random:
            seeded_draws = own_randomness(self.judge.device)
        # The lock of the random state comes first: a thread that has it while it trains may also
        # ask for the judge, and two threads with one lock each would wait for each other.
        with seeded_draws, self._lock:
            yield self.judge

    @contextmanager
    def side_by_side(self, metric: str, at_most: int) -> Iterator[JudgePool | None]:
        """Give a pool of judges to the caller alone, to evaluate many models.

        ``None`` is given in place of a pool where :meth:`alone` is as fast.

        Parameters
        ----------
        metric : str
            The metric by which models are evaluated.
        at_most : int
            How many replicas there may be: more copies of the model would take too much memory.
        """
        threads = torch.get_num_threads()
        if self.judge.device.type != "cpu" or threads == 1 or self.judge.is_random:
            yield None
            return
        # Otherwise one thread with one core: several would not be faster, or may not call the
        # user's functions at once.
        size = 1
        purpose = "models one by one"
        if self._is_worth_sharing() and self._may_be_shared([metric]):
            size = max(min(threads, at_most), 1)
            purpose = "models"
        with self.alone():  # Replicas are copies of the judge, which nobody may use meanwhile.
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

        The batches are divided among the cores because a pass over one small batch keeps only one
        core busy. All batches stay in one thread for a ``batch_loss`` and for the user's scores,
        which may keep a state or need all examples at once, and for a model that draws at random.

        Parameters
        ----------
        params : Tensor
            ``[d]``.
        buffers : mapping of str to Tensor, optional
            Buffers and frozen parameters by name; those left out stay as they were.
        work : callable
            Called with a judge that has these parameters, and with some of the batches.
        metrics : iterable of str
            The metrics that ``work`` computes.
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
        """Tell whether several threads may share a pass for these metrics, and are faster."""
        if threads == 1 or self.judge.is_random or not self._is_worth_sharing():
            return False
        if threads * self.judge.model.params.numel() > _MOST_REPLICATED:
            return False
        return self._may_be_shared(metrics)

    def _may_be_shared(self, metrics: Iterable[str]) -> bool:
        """Tell whether several threads may compute these metrics at the same time.

        They may not for a ``batch_loss`` and for the user's scores, which may keep a state.
        """
        if not isinstance(self.judge.objective, PairObjective):
            return False
        return {"loss", "accuracy"}.issuperset(metrics)

    def _is_worth_sharing(self) -> bool:
        """Tell whether a pass takes so long that several threads are faster."""
        size = self.judge.model.params.numel() * sum(batch.size for batch in self.batches)
        return self.judge.device.type == "cpu" and size >= _WORTH_SHARING

    def _pool(self, purpose: str, size: int) -> JudgePool:
        """Return a pool of at least ``size`` replicas of the judge, made when first needed."""
        with self._pool_lock:
            if purpose not in self._pools or len(self._pools[purpose].judges) < size:
                self._pools[purpose] = JudgePool([self.judge.replica() for _ in range(size)])
            return self._pools[purpose]
