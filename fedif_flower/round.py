"""What a round gives the server to judge, and what a rule answers: tensors, no Flower types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.seeding import torch_generator


@dataclass(frozen=True)
class ModelVectors:
    """A model as vectors: ``params`` [d], ``buffers`` [b] and the integer arrays by name."""

    params: Tensor  # [d]
    buffers: Tensor  # [b]
    counters: Mapping[str, Tensor] = field(default_factory=dict)


class BufferNames(Protocol):
    """Knows the arrays of a model that are not trained by name."""

    def named_buffers(self, vectors: ModelVectors) -> Mapping[str, Tensor]:
        """Return a model's buffers by name, counters included."""
        ...

    def split_buffers(self, buffers: Tensor) -> Mapping[str, Tensor]:
        """Return buffers ``[..., b]`` by name, ``[..., *shape]`` each."""
        ...


class UnseenUpdates(Protocol):
    """Updates that nobody sees: what is known of them are linear functions, and lengths."""

    def products(self, vector: Tensor) -> Tensor:
        """Return the inner products ``[m]``, float64, of the updates with a vector ``[d]``."""
        ...

    def product_errors(self, vector: Tensor) -> Tensor:
        """Return how far, ``[m]`` of float64, these products may be off."""
        ...

    def summed(self, weights: Tensor) -> Tensor:
        """Return the sum ``[d]`` of the updates times weights ``[m]``; one sum a round.

        Other weights may only be a multiple of those of the first call.
        """
        ...

    def cut(self, coefficients: Tensor) -> Tensor:
        """Return factors ``[m]`` by which :meth:`summed` is allowed coefficients ``[m]``."""
        ...

    def sketched(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return roughly the updates' inner products, and their coordinates in a basis.

        ``basis`` is orthonormal, ``[k, d]``; both are float64, ``[m, m]`` and ``[m, k]``.
        """
        ...


@dataclass(frozen=True)
class RoundUpdates:
    """The accepted replies of one round, ordered by partition id.

    Attributes
    ----------
    server_round : int
        The round t, from 1.
    seed : int
        The run's; see :meth:`generator`.
    client_ids : tuple of int
        The m clients' lasting ids: the key of every score that is kept.
    num_examples : Tensor
        ``[m]``, float64: the examples each client says it trained on.
    model : ModelVectors
        The model w_{t-1} that the clients received, params ``[d]`` and buffers ``[b]``.
    client_updates : Tensor
        ``[m, d]``: w_i - w_{t-1} for the models w_i that they sent back.
    squared_norms : Tensor
        ``[m]``, float64: of the updates.
    buffer_updates : Tensor
        ``[m, b]``: the changes of floating-point arrays that are not trained.
    counters : sequence of mapping of str to Tensor
        The integer arrays that each of the m clients sent back, by name.
    names : BufferNames, optional
        What the buffers are called; ``None``: all of the model is trained.
    unseen : UnseenUpdates, optional
        Where updates are masked; ``client_updates`` is ``[m, 0]`` then.
    factors, buffer_factors : Tensor, optional
        ``[m]``, float64, in [0, 1]: by how much each client's update of parameters, and of
        buffers, is shortened where it is used; ``None``: by nothing.
    mixing : Tensor, optional
        ``[m, n]``, on the CPU: the matrix by which the updates are means of the n clients' own
        ones, at full length; n = m unless they are of groups.
    mixed_factors : Tensor, optional
        ``[n]``, float64: by how much the clients' own updates were shortened before they were
        mixed; ``None``: they are not mixed.
    sent : ModelVectors, optional
        The clients' models as they came, params ``[m, d]`` and buffers ``[m, b]``, on the CPU: kept
        for a rule that takes one over. ``global_params + client_updates`` is the same but for
        rounding.
    """

    server_round: int
    client_ids: tuple[int, ...]
    num_examples: Tensor
    model: ModelVectors
    client_updates: Tensor
    squared_norms: Tensor
    buffer_updates: Tensor
    counters: Sequence[Mapping[str, Tensor]] = ()
    names: BufferNames | None = None
    unseen: UnseenUpdates | None = None
    seed: int = 0
    factors: Tensor | None = None
    buffer_factors: Tensor | None = None
    mixing: Tensor | None = None
    mixed_factors: Tensor | None = None
    sent: ModelVectors | None = None

    @property
    def shortening(self) -> Tensor:
        """``factors`` [m], 1 where nothing is shortened."""
        if self.factors is None:
            return self._ones()
        return self.factors

    @property
    def buffer_shortening(self) -> Tensor:
        """``buffer_factors`` [m], 1 where nothing is shortened."""
        if self.buffer_factors is None:
            return self._ones()
        return self.buffer_factors

    @property
    def client_shortening(self) -> Tensor:
        """By how much each client's own update is shortened, ``[n]``; in several means, on average.

        It is :attr:`shortening` where updates are not mixed.
        """
        if self.mixing is None or self.mixed_factors is None:
            return self.shortening
        in_all_means = self.mixing.sum(dim=0)  # [n]
        still_used = (self.shortening[:, None] * self.mixing).sum(dim=0)  # [n]
        since = torch.where(in_all_means > 0, still_used / in_all_means, 1.0)
        return self.mixed_factors * since

    def shortened(self) -> RoundUpdates:
        """Return the round with updates that are as short as the factors say."""
        factors = self.shortening
        buffer_factors = self.buffer_shortening
        updates = self.client_updates
        buffer_updates = self.buffer_updates
        if bool((factors < 1).any()):
            updates = updates * factors[:, None].to(updates)
        if bool((buffer_factors < 1).any()):
            buffer_updates = buffer_updates * buffer_factors[:, None].to(buffer_updates)
        return replace(
            self,
            client_updates=updates,
            squared_norms=self.squared_norms * factors.square(),
            buffer_updates=buffer_updates,
            factors=None,
            buffer_factors=None,
        )

    def mixed(self, mixing: Tensor) -> RoundUpdates:
        """Return the round with means of its updates, shortened, in their place.

        Parameters
        ----------
        mixing : Tensor
            ``[n, m]``, float64: the weights of each mean, a row for each.
        """
        of_updates = mixing.cpu() * self.shortening  # [n, m]
        of_buffers = mixing.cpu() * self.buffer_shortening
        updates = of_updates.to(self.client_updates) @ self.client_updates  # [n, d]
        of_clients = of_updates
        if self.mixing is not None:
            of_clients = of_updates @ self.mixing
        return replace(
            self,
            client_updates=updates,
            squared_norms=updates.double().square().sum(dim=1).cpu(),
            buffer_updates=of_buffers.to(self.buffer_updates) @ self.buffer_updates,
            factors=None,
            buffer_factors=None,
            mixing=of_clients,
            mixed_factors=self.client_shortening,
            sent=None,
        )

    def unmixed(self, aggregation: Aggregation) -> Aggregation:
        r"""Return what a rule made of mixed updates with weights of the clients' own ones.

        .. math:: p_i = \sum_j q_j M_{ji} / f_i

        with :math:`f_i` by how much an update was shortened before it was mixed: a weight says
        what it counts for, not how long it is.
        """
        if self.mixing is None:
            return aggregation
        groups, clients = self.mixing.shape
        if groups != clients:  # What was said of a group is said of no client.
            aggregation = replace(
                aggregation, scores=None, normalized=None, weight_scores=None, accumulative=None
            )
        applied = aggregation.applied
        if applied is not None:
            applied = applied.double() @ self.mixing
        weights = self._unmixed_weights(aggregation.weights, self.mixing)
        rescaling = aggregation.rescaling
        if rescaling is not None:
            weights_alone = self._unmixed_weights(aggregation.weights_alone, self.mixing)
            rescaling = torch.where(weights_alone > 0, weights / weights_alone, 1.0)
        return replace(aggregation, weights=weights, applied=applied, rescaling=rescaling)

    def _unmixed_weights(self, weights: Tensor, mixing: Tensor) -> Tensor:
        """Return the clients' own weights ``[n]`` for those ``[m]`` of mixed updates."""
        unmixed = weights.double() @ mixing
        if self.mixed_factors is None:
            return unmixed
        return without_factors(unmixed, self.mixed_factors)

    def _ones(self) -> Tensor:
        return torch.ones(self.num_clients, dtype=torch.float64)

    def generator(self, purpose: str) -> torch.Generator:
        """Return a CPU generator of this round's own, for one purpose."""
        return torch_generator(purpose, self.seed, self.server_round)

    @property
    def global_params(self) -> Tensor:
        """The model w_{t-1}, ``[d]``."""
        return self.model.params

    @property
    def global_buffers(self) -> Tensor:
        """The buffers of w_{t-1}, ``[b]``."""
        return self.model.buffers

    @property
    def named_buffers(self) -> Mapping[str, Tensor]:
        """The buffers of w_{t-1} by name, counters included."""
        if self.names is None:
            return self.model.counters
        return self.names.named_buffers(self.model)

    def split_buffers(self, buffers: Tensor) -> Mapping[str, Tensor]:
        """Return buffers ``[..., b]`` by name, ``[..., *shape]`` each."""
        if self.names is None:
            return {}
        return self.names.split_buffers(buffers)

    @property
    def num_clients(self) -> int:
        """The number m of accepted replies."""
        return len(self.client_ids)

    def client_params(self) -> Tensor:
        """Return the models w_i, ``[m, d]`` (a new tensor)."""
        return self.global_params + self.client_updates

    def named_client_buffers(self) -> Mapping[str, Tensor]:
        """Return the clients' buffers by name, ``[m, ...]`` each (new tensors)."""
        return self.split_buffers(self.global_buffers + self.buffer_updates)

    def state_updates(self) -> Tensor:
        """Return what changed of parameters, buffers and counters, ``[m, d + b + c]`` (new)."""
        columns = [self.client_updates, self.buffer_updates]
        if any(self.counters):
            changes = torch.stack([self._counted(counters) for counters in self.counters])  # [m, c]
            columns.append(changes.to(self.client_updates))
        return torch.cat(columns, dim=1)

    def _counted(self, counters: Mapping[str, Tensor]) -> Tensor:
        """Return by how much one client's counters changed, ``[c]``."""
        before = self.model.counters
        changes = [value.double() - before[name].double() for name, value in counters.items()]
        return torch.cat([change.flatten() for change in changes])


@dataclass(frozen=True)
class Aggregation:
    """What a rule makes of a round: coefficients, and the scores that led to them.

    The new model is ``w_t = w_{t-1} + sum_i weights_i (w_i - w_{t-1})``, which is the weighted
    mean of the clients' models where the weights sum to 1.

    Attributes
    ----------
    weights : Tensor
        ``[m]``, finite: the rule's; once stages have chosen where the round leads, those that it
        took.
    scores : Tensor, optional
        ``[m]``: the round's raw valuation, e.g. round influences Phi.
    normalized : Tensor, optional
        ``[m]``: the valuation after round normalisation, Psi.
    weight_scores : Tensor, optional
        ``[m]``: the smoothed score Omega of these clients.
    accumulative : Tensor, optional
        ``[m]``: the paper's accumulative influence INF of these clients.
    evaluations : int
        How often the model was evaluated on the validation set, or on a part of it.
    losses : tuple of float
        Where the weights descend the validation loss: at the start and after each step taken.
    noise : Tensor, optional
        ``[d]``, on the CPU: what is added to the parameters besides.
    applied : Tensor, optional
        ``[m]``: what the updates were multiplied by in the end, bounds included; ``None`` where the
        round's step is no sum of updates times coefficients.
    shortening : Tensor, optional
        ``[m]``, in [0, 1]: the part of ``applied`` that shortens each client's update, whatever its
        weight; ``None``: by nothing.
    rescaling : Tensor, optional
        ``[m]``, >= 0: the part of ``weights`` that brings each update to another length, whatever
        the rest of its weight. Buffers,
        whose changes have lengths of their own, are averaged without it; ``None``: there is none.
    """

    weights: Tensor
    scores: Tensor | None = None
    normalized: Tensor | None = None
    weight_scores: Tensor | None = None
    accumulative: Tensor | None = None
    evaluations: int = 0
    losses: tuple[float, ...] = ()
    noise: Tensor | None = None
    applied: Tensor | None = None
    shortening: Tensor | None = None
    rescaling: Tensor | None = None

    def require_of(self, num_clients: int) -> Aggregation:
        """Return this, or raise ValuationError where figures are no tensor, a number a client."""
        for name in ("weights", "scores", "normalized", "weight_scores", "accumulative"):
            figures = getattr(self, name)
            if figures is None:
                continue
            if not isinstance(figures, Tensor):
                raise ValuationError(f"{name} are a {type(figures).__name__}; allowed: a tensor")
            if figures.shape != (num_clients,):
                raise ValuationError(
                    f"{name} of shape {list(figures.shape)} for {num_clients} clients; allowed: a "
                    "number for each"
                )
        return self

    @property
    def weights_alone(self) -> Tensor:
        """``weights`` [m] without what brings updates to another length."""
        if self.rescaling is None:
            return self.weights
        return without_factors(self.weights.double(), self.rescaling)

    @property
    def length_factors(self) -> Tensor:
        """By how much stages and rule shorten or lengthen each client's update, ``[m]``."""
        factors = torch.ones(len(self.weights), dtype=torch.float64)
        for part in (self.shortening, self.rescaling):
            if part is not None:
                factors = factors * part.double().cpu()
        return factors

    @property
    def gives_nobody_weight(self) -> bool:
        """Whether the rule, or a bound, multiplies every update by 0."""
        return self.applied is not None and not bool(self.applied.any())


def without_factors(weights: Tensor, factors: Tensor) -> Tensor:
    """Return weights ``[m]`` without the factors ``[m]`` in them; 0 where the factor is 0."""
    return torch.where(factors > 0, weights / factors, 0.0)


@contextmanager
def refuse_changes_in_place(updates: RoundUpdates, error: str) -> Iterator[None]:
    """Raise ValuationError with these words where the updates are changed in place meanwhile."""
    version = updates.client_updates._version  # PyTorch counts every change in place.
    yield
    if updates.client_updates._version != version:
        raise ValuationError(error)
