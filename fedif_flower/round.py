"""The updates of a round, and what a rule makes of them: tensors, no Flower types."""

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
    """A model as vectors.

    Attributes
    ----------
    params : Tensor
        ``[d]``: the trainable parameters.
    buffers : Tensor
        ``[b]``: the floating-point arrays that are not trained.
    counters : mapping of str to Tensor
        The integer arrays, by name.
    """

    params: Tensor  # [d]
    buffers: Tensor  # [b]
    counters: Mapping[str, Tensor] = field(default_factory=dict)


class BufferNames(Protocol):
    """Knows the names of a model's arrays that are not trained."""

    def named_buffers(self, vectors: ModelVectors) -> Mapping[str, Tensor]:
        """Return a model's buffers by name, counters included."""
        ...

    def split_buffers(self, buffers: Tensor) -> Mapping[str, Tensor]:
        """Return buffers ``[..., b]`` by name, ``[..., *shape]`` each."""
        ...


class UnseenUpdates(Protocol):
    """Masked updates, which nobody sees: only linear functions of them and lengths are known."""

    def products(self, vector: Tensor) -> Tensor:
        """Return the inner products ``[m]``, float64, of the updates with a vector ``[d]``."""
        ...

    def product_errors(self, vector: Tensor) -> Tensor:
        """Return bounds ``[m]``, float64, on the errors of :meth:`products` with this vector."""
        ...

    def summed(self, weights: Tensor) -> Tensor:
        """Return the sum ``[d]`` of the updates times weights ``[m]``.

        A round allows one sum. The weights of later calls have to be multiples of those of the
        first call.
        """
        ...

    def cut(self, coefficients: Tensor) -> Tensor:
        """Return factors ``[m]`` that make coefficients ``[m]`` allowed for :meth:`summed`."""
        ...

    def sketched(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return estimates of the updates' inner products, and of their coordinates in a basis.

        Parameters
        ----------
        basis : Tensor
            ``[k, d]``, orthonormal.

        Returns
        -------
        gram : Tensor
            ``[m, m]``, float64.
        coordinates : Tensor
            ``[m, k]``, float64.
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
        The strategy's seed; see :meth:`generator`.
    client_ids : tuple of int
        The m clients' lasting ids, under which scores are kept over rounds.
    num_examples : Tensor
        ``[m]``, float64: how many examples each client says that it trained on.
    model : ModelVectors
        The model w_{t-1} that the clients received, params ``[d]`` and buffers ``[b]``.
    client_updates : Tensor
        ``[m, d]``: w_i - w_{t-1} for the models w_i that they sent back.
    squared_norms : Tensor
        ``[m]``, float64: the squared norms of the updates.
    buffer_updates : Tensor
        ``[m, b]``: the changes of floating-point arrays that are not trained.
    counters : sequence of mapping of str to Tensor
        The integer arrays that each of the m clients sent back, by name.
    names : BufferNames, optional
        The names of the buffers; ``None``: all of the model is trained.
    unseen : UnseenUpdates, optional
        The updates, if they are masked; ``client_updates`` is ``[m, 0]`` then.
    factors, buffer_factors : Tensor, optional
        ``[m]``, float64, in [0, 1]: what each client's update of parameters, and of buffers, is to
        be multiplied by where it is used, to shorten it; ``None``: nothing is shortened.
    mixing : Tensor, optional
        ``[m, n]``, on the CPU: the updates are this matrix times the n clients' own updates, at
        full length. n = m unless each update is a group's mean. ``None``: the updates are not
        mixed.
    mixed_factors : Tensor, optional
        ``[n]``, float64: the factors by which the clients' own updates were shortened before they
        were mixed, which are part of ``mixing`` as well; ``None``: the updates are not mixed.
    sent : ModelVectors, optional
        The models as the clients sent them, params ``[m, d]`` and buffers ``[m, b]``, on the CPU.
        They are kept for a rule that takes over one client's model, from which
        ``global_params + client_updates`` differs by rounding.
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
        """The factor by which each client's own update is shortened, ``[n]``.

        If an update is part of several means that are shortened differently, it is the weighted
        average. If updates are not mixed, it is :attr:`shortening`.
        """
        if self.mixing is None or self.mixed_factors is None:
            return self.shortening
        in_all_means = self.mixing.sum(dim=0)  # [n]
        still_used = (self.shortening[:, None] * self.mixing).sum(dim=0)  # [n]
        since = torch.where(in_all_means > 0, still_used / in_all_means, 1.0)
        return self.mixed_factors * since

    def shortened(self) -> RoundUpdates:
        """Return the round with shortened updates: the factors are multiplied into them."""
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
        """Return the round with means of its (shortened) updates in the place of the updates.

        ``client_ids``, ``num_examples`` and ``counters`` are left as they are: if there are fewer
        means than updates, the caller replaces them.

        Parameters
        ----------
        mixing : Tensor
            ``[n, m]``, float64: the weights of each of n means, one row for each mean.
        """
        update_weights = mixing.cpu() * self.shortening  # [n, m]
        buffer_weights = mixing.cpu() * self.buffer_shortening
        updates = update_weights.to(self.client_updates) @ self.client_updates  # [n, d]
        client_weights = update_weights  # The means as sums of the clients' own updates.
        if self.mixing is not None:
            client_weights = update_weights @ self.mixing
        return replace(
            self,
            client_updates=updates,
            squared_norms=updates.double().square().sum(dim=1).cpu(),
            buffer_updates=buffer_weights.to(self.buffer_updates) @ self.buffer_updates,
            factors=None,
            buffer_factors=None,
            mixing=client_weights,
            mixed_factors=self.client_shortening,
            sent=None,
        )

    def unmixed(self, aggregation: Aggregation) -> Aggregation:
        r"""Return a rule's result for mixed updates, with weights of the clients' own updates.

        .. math:: p_i = \sum_j q_j M_{ji} / f_i

        with :math:`q_j` the rule's weight of mixed update j, M the :attr:`mixing` and :math:`f_i`
        the factor by which client i's update was shortened before it was mixed. The division by
        :math:`f_i` is there because a weight says what an update counts for, not how long it is.
        """
        if self.mixing is None:
            return aggregation
        groups, clients = self.mixing.shape
        if groups != clients:  # Scores of a group are no scores of a client.
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
        """Return weights ``[n]`` of the clients' own updates for weights ``[m]`` of mixed ones."""
        unmixed = weights.double() @ mixing
        if self.mixed_factors is None:
            return unmixed
        return without_factors(unmixed, self.mixed_factors)

    def _ones(self) -> Tensor:
        return torch.ones(self.num_clients, dtype=torch.float64)

    def generator(self, purpose: str) -> torch.Generator:
        """Return a CPU generator for one purpose in this round, by the strategy's seed."""
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
        """Return the changes of parameters, buffers and counters, ``[m, d + b + c]`` (new)."""
        columns = [self.client_updates, self.buffer_updates]
        if any(self.counters):
            changes = torch.stack([self._counted(counters) for counters in self.counters])  # [m, c]
            columns.append(changes.to(self.client_updates))
        return torch.cat(columns, dim=1)

    def _counted(self, counters: Mapping[str, Tensor]) -> Tensor:
        """Return the changes of one client's counters, ``[c]``."""
        before = self.model.counters
        changes = [value.double() - before[name].double() for name, value in counters.items()]
        return torch.cat([change.flatten() for change in changes])


@dataclass(frozen=True)
class Aggregation:
    """What a rule makes of a round: weights, and the scores that led to them.

    The new model is ``w_t = w_{t-1} + sum_i weights_i (w_i - w_{t-1})``, which is the weighted
    mean of the clients' models if the weights sum to 1.

    Attributes
    ----------
    weights : Tensor
        ``[m]``, finite: the rule's weights; once stages have chosen where the round leads, the
        weights of that step.
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
        The validation losses at the start of influence descent and after each of its steps; empty
        for rules that do not descend the loss.
    noise : Tensor, optional
        ``[d]``, on the CPU: noise that is added to the parameters beside the step.
    applied : Tensor, optional
        ``[m]``: the coefficients that the updates were finally multiplied by, bounds included;
        ``None``: the round's step is no sum of updates times coefficients.
    shortening : Tensor, optional
        ``[m]``, in [0, 1]: the factor within ``applied`` by which stages shorten each client's
        update; ``None``: they do not.
    rescaling : Tensor, optional
        ``[m]``, >= 0: the factor within ``weights`` by which the rule brings each update to another
        length; ``None``: it does not. Buffers are averaged without it, since their changes have
        other lengths than the updates of parameters.
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
        """Return this aggregation if every figure is a tensor ``[num_clients]``.

        Raises
        ------
        ValuationError
            If weights, scores or others are no tensors, or of another shape.
        """
        for name in ("weights", "scores", "normalized", "weight_scores", "accumulative"):
            figures = getattr(self, name)
            if figures is None:
                continue
            if not isinstance(figures, Tensor):
                raise ValuationError(
                    f"the rule's {name} are of type {type(figures).__name__}; allowed: a tensor"
                )
            if figures.shape != (num_clients,):
                raise ValuationError(
                    f"the rule's {name} have the shape {list(figures.shape)} for {num_clients} "
                    "clients; allowed: a number for each"
                )
        return self

    @property
    def weights_alone(self) -> Tensor:
        """``weights`` [m] without the factor ``rescaling``."""
        if self.rescaling is None:
            return self.weights
        return without_factors(self.weights.double(), self.rescaling)

    @property
    def length_factors(self) -> Tensor:
        """The factors ``[m]`` by which stages and the rule shorten or lengthen the updates."""
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
    """Return weights ``[m]`` divided by factors ``[m]`` in them; 0 where a factor is 0."""
    return torch.where(factors > 0, weights / factors, 0.0)


@contextmanager
def refuse_changes_in_place(updates: RoundUpdates, error: str) -> Iterator[None]:
    """Raise ValuationError(error) if the updates are changed in place within the context."""
    version = updates.client_updates._version  # PyTorch counts a tensor's changes in place.
    yield
    if updates.client_updates._version != version:
        raise ValuationError(error)
