"""How a validation set's passes are shared by the cores: a replica of the model for each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch

from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.objective import Objective, PairObjective
from fedif_flower.valuation.replica_pool import ReplicaPool

if TYPE_CHECKING:
    from fedif_flower.valuation.validation import Validation

T = TypeVar("T")

# Below this many parameters times examples, neither several threads nor a draft are faster.
_WORTH_SHARING = 10_000_000
# Parameters of all replicas together for one pass: larger models keep the cores busy by themselves.
_MOST_REPLICATED = 32_000_000


class Batch(NamedTuple):
    """Some of the held-out examples, how many, and what the mean of their losses divides by."""

    content: Any
    size: float
    weight: float


class Replicas:
    """A pool of replicas of one validation, made when it is needed first."""

    def __init__(self) -> None:
        self._pool: ReplicaPool[Validation] | None = None
        self._lock = Lock()

    def of(self, judge: Validation, size: int) -> ReplicaPool[Validation]:
        """Return ``size`` replicas of a validation's model."""
        with self._lock:
            if self._pool is None or self._pool.size != size:
                self._pool = ReplicaPool([judge.replica() for _ in range(size)])
            return self._pool


class HasReplicas:
    """What a :class:`~fedif_flower.valuation.validation.Validation` does on several cores."""

    device: torch.device
    num_examples: float
    total_weight: float
    _model: FlatModel
    _batches: list[Batch]
    _objective: Objective
    _passes: Replicas  # One with its parts: the batches come with each pass.
    _judges: Replicas  # Each on all of this data.

    @property
    def is_large(self) -> bool:
        """Whether a pass over the data takes long enough to be made faster in special ways."""
        return self._model.params.numel() * self.num_examples >= _WORTH_SHARING

    def replica_pool(self, at_most: int) -> ReplicaPool[Validation] | None:
        """Return replicas with a thread each, on the same data; ``None`` where one does as well.

        Parameters
        ----------
        at_most : int
            Replicas: more copies of the model would take too much memory.
        """
        threads = torch.get_num_threads()
        if self.device.type != "cpu" or threads == 1:
            return None
        size = max(min(threads if self.is_large else 1, at_most), 1)
        pool = self._judges.of(cast("Validation", self), size)
        for replica in pool.replicas:
            replica._model.load(self._model.params, self._model.state)
        return pool

    def replica(self) -> Validation:
        """Return a copy on the same data with a model of its own."""
        other = copy.copy(cast("Validation", self))
        other._adopt(self._model.module)
        return other

    def part(self, batches: Sequence[Batch]) -> Validation:
        """Return a validation on some of the data, with this model."""
        other = copy.copy(cast("Validation", self))
        vars(other).pop("gradients", None)  # What is of all of D'.
        other._draft, other._judges = None, Replicas()
        other._hold(batches)
        return other

    def _hold(self, batches: Sequence[Batch]) -> None:
        """Take these batches for all of the data."""
        self._batches = list(batches)
        self.num_examples = sum(batch.size for batch in batches)
        self.total_weight = sum(batch.weight for batch in batches)

    def share_batches(
        self, work: Callable[[Validation, Sequence[Batch]], T], metrics: Sequence[str]
    ) -> list[T]:
        """Return ``work(judge, batches)`` for parts of the data, each on a core of its own.

        A pass over small batches keeps one core busy, and several only in part. Losses of
        ``batch_loss`` and scores of the user's own stay in one thread: they may keep a state.

        Parameters
        ----------
        work : callable
            Given this object or a replica of it, with the parameters last loaded.
        metrics : sequence of str
            What it takes.
        """
        threads = min(torch.get_num_threads(), len(self._batches))
        if (
            threads == 1
            or self.device.type != "cpu"
            or not self.is_large
            or threads * self._model.params.numel() > _MOST_REPLICATED
            or not isinstance(self._objective, PairObjective)
            or not {"loss", "accuracy"}.issuperset(metrics)
        ):
            return [work(cast("Validation", self), self._batches)]
        params, others = self._model.params, self._model.others

        def on(replica: Validation, batches: Sequence[Batch]) -> T:
            with replica._loaded(params, others):
                return work(replica, batches)

        pool = self._passes.of(cast("Validation", self), threads)
        return pool.map(on, [self._batches[part::threads] for part in range(threads)])
