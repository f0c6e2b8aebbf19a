"""The stages of a strategy, applied in their order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedif_flower.combining import largest_counters, move_model
from fedif_flower.errors import CheckpointError, ConfigError, ValuationError
from fedif_flower.round import (
    Aggregation,
    ModelVectors,
    RoundUpdates,
    refuse_changes_in_place,
    without_factors,
)
from fedif_flower.stages.stage import Destination, Proposal, ServerOptimizer, Stage, overrides
from fedif_flower.valuation.validation import Validation

_Stage = TypeVar("_Stage", bound=Stage)


class Stages:
    """Applies stages in their order; without stages, rounds stay as they are.

    Parameters
    ----------
    stages : sequence of Stage
        The stages, in the order in which they are applied.

    Raises
    ------
    ConfigError
        If something else is among them, if more than one stage has a ``choose`` of its own, or if
        more than one is a server optimizer.

    Attributes
    ----------
    arrive : callable, optional
        Takes an update ``[d]``, which it may change in place as it arrives, and its squared norm;
        returns the new squared norm. ``None`` if no stage changes updates as they arrive.
    choosing : Stage, optional
        The stage that chooses where a round leads, if there is one.
    optimizer : ServerOptimizer, optional
        The stage that moves the model on after a round's own step, if there is one.
    makes_groups : bool
        Whether a stage replaces the clients by groups.
    max_length : float
        The length to which stages shorten updates as they arrive; infinity if none does.
    """

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        if not isinstance(stages, Iterable):
            raise ConfigError(f"stages = {stages!r}; allowed: a list of them, such as [Clip(2.0)]")
        for stage in stages:
            if not isinstance(stage, Stage):
                raise ConfigError(f"stages: {stage!r}; allowed: stages, such as Clip(2.0)")
        self._stages = tuple(stages)
        self._arriving = [stage for stage in stages if overrides(stage, "arrive")]
        self._before = [stage for stage in stages if overrides(stage, "before")]
        choosing = [stage for stage in stages if overrides(stage, "choose")]
        self.choosing = _only(choosing, allowed="at most one stage with a choose of its own")
        optimizers = [stage for stage in stages if isinstance(stage, ServerOptimizer)]
        self.optimizer = _only(optimizers, allowed="at most one server optimizer")
        self.arrive = self._arrive if self._arriving else None
        self.makes_groups = any(stage.makes_groups for stage in stages)
        self.max_length = min((stage.max_length for stage in stages), default=math.inf)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    def __repr__(self) -> str:
        return repr(list(self._stages))

    def begin(self, validation: Validation | None) -> None:
        """Tell every stage the strategy's validation set, ``None`` if it has none."""
        for stage in self:
            stage.begin(validation)

    @property
    def remembering(self) -> list[Stage]:
        """The stages that remember earlier rounds."""
        return [stage for stage in self if overrides(stage, "state_dict")]

    def why_updates_are_read(self) -> str:
        """Return the first stage's reason why it has to see the updates; empty if none has to."""
        for stage in self:
            reason = stage.why_updates_are_read()
            if reason:
                return reason
        return ""

    def require_updates(self, count: int, allowed: str) -> int:
        """Return how many updates a rule gets if a round closes with ``count`` of them.

        Parameters
        ----------
        count : int
            The number of updates with which a round closes, if its members answer in time.
        allowed : str
            Words that say how many that is, for errors.

        Raises
        ------
        ConfigError
            If a stage needs more updates.
        """
        for stage in self:
            count = stage.require_updates(count, allowed)
        return count

    def _arrive(self, update: Tensor, squared_norm: float) -> float:
        """Let each stage change an update ``[d]`` in place, and return its squared norm then."""
        for stage in self._arriving:
            squared_norm = stage.arrive(update, squared_norm)
            if not isinstance(squared_norm, Real | Tensor):
                raise ValuationError(
                    f"stage {type(stage).__name__}: arrive returns {type(squared_norm).__name__}; "
                    "allowed: the update's squared norm, a number"
                )
        return squared_norm

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round as the stages leave it for the strategy to weigh.

        Raises
        ------
        ValuationError
            If a stage returns no RoundUpdates, if it changes updates in a way that does not say
            of which clients' updates each row is made, or if its factors are not in [0, 1].
        """
        for stage in self._before:
            unsaid = (
                f"stage {type(stage).__name__} changes updates without saying of which clients' "
                "updates they are made: return updates.mixed(matrix) for means of them, factors "
                "for shorter ones"
            )
            with refuse_changes_in_place(updates, unsaid):
                staged = stage.before(updates)
                _require_round(stage, staged)
            if not _says_whose(updates, staged):
                raise ValuationError(unsaid)
            if staged.num_clients != updates.num_clients and not stage.makes_groups:
                raise ValuationError(
                    f"stage {type(stage).__name__} makes {staged.num_clients} rows of "
                    f"{updates.num_clients}; a stage that makes groups has makes_groups = True"
                )
            updates = staged
        return updates

    def settle(self, updates: RoundUpdates, proposed: Aggregation) -> Destination:
        """Return the destination of a round's proposed weights, or the one that a stage chooses.

        Parameters
        ----------
        updates : RoundUpdates
            The round, as :meth:`before` returned it.
        proposed : Aggregation
            The rule's weights ``[m]``. Its ``noise``, if any, is added to every destination.

        Raises
        ------
        ValuationError
            If the model is not finite, if no step leads to a finite validation loss, or if the
            choosing stage returns something else than a result of ``proposal.move``.
        """
        move = _Move(updates, proposed)
        proposal = Proposal(updates, proposed.weights, move, self.optimizer)
        if self.choosing is None:
            return move(proposal.coefficients)
        chosen = self.choosing.choose(proposal)
        if not move.has_led_to(chosen):
            raise ValuationError(
                f"stage {type(self.choosing).__name__}: choose returned something else than a "
                "result of proposal.move(coefficients)"
            )
        return chosen

    def combined(
        self, updates: RoundUpdates, aggregation: Aggregation
    ) -> tuple[ModelVectors, Aggregation]:
        """Return the model that a round leads to, and the weights and coefficients that it took.

        Parameters
        ----------
        updates : RoundUpdates
            The round, as :meth:`before` returned it.
        aggregation : Aggregation
            The rule's weights ``[m]``.
        """
        if updates.unseen is not None:
            # The server sees only a weighted sum of the updates, and not for all weights: `cut`
            # returns the factors that make these coefficients allowed ones.
            weights = aggregation.weights
            factors = updates.unseen.cut(weights.cpu() * updates.shortening)
            aggregation = replace(aggregation, weights=weights * factors.to(weights))
        step = self.settle(updates, aggregation)
        counters = largest_counters(updates.model.counters, updates.counters, step.coefficients)
        vectors = ModelVectors(step.params, step.buffers, counters)
        aggregation = replace(
            aggregation,
            weights=step.weights,
            applied=step.coefficients,
            shortening=updates.client_shortening,
            rescaling=step.rescaling,
        )
        return vectors, aggregation

    def take_back(self) -> None:
        """Tell every stage that the model goes back to the one before the last step."""
        for stage in self:
            stage.take_back()

    def state_dict(self) -> dict[str, Any]:
        """Return the name and the state of each stage, in their order."""
        return {"stages": [[type(stage).__name__, stage.state_dict()] for stage in self]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises
        ------
        CheckpointError
            If the state was saved with other stages.
        """
        saved = state["stages"]
        saved_names = [name for name, _ in saved]
        if saved_names != [type(stage).__name__ for stage in self]:
            raise CheckpointError(f"stages: {self}; saved: {saved_names}")
        for stage, (_, stage_state) in zip(self, saved, strict=True):
            stage.load_state_dict(stage_state)


def _require_round(stage: Stage, staged: object) -> None:
    """Raise ValuationError unless a stage returned RoundUpdates with factors in [0, 1]."""
    name = type(stage).__name__
    if not isinstance(staged, RoundUpdates):
        raise ValuationError(
            f"stage {name}: before returns {type(staged).__name__}; allowed: RoundUpdates"
        )
    for kind in ("factors", "buffer_factors"):
        factors = getattr(staged, kind)
        if factors is None:
            continue
        is_of_each = isinstance(factors, Tensor) and factors.shape == (staged.num_clients,)
        if not is_of_each or not bool(((factors >= 0) & (factors <= 1)).all()):
            shown = factors.tolist() if isinstance(factors, Tensor) else factors
            raise ValuationError(
                f"stage {name}: {kind} = {shown}; allowed: a tensor with a share in [0, 1] for "
                f"each of {staged.num_clients} updates"
            )


def _says_whose(before: RoundUpdates, after: RoundUpdates) -> bool:
    """Return whether it is known of which clients' updates the rows of ``after`` are made.

    It is if a stage used ``updates.mixed(matrix)``, which records the matrix, or if it left the
    rows as they were.
    """
    if after.mixing is not before.mixing:
        return _mixes_all_clients(before, after)
    return _has_same_rows(before, after)


def _mixes_all_clients(before: RoundUpdates, after: RoundUpdates) -> bool:
    """Return whether the matrix ``after.mixing`` has a row for each row, a column for each client.

    The clients are those before any mixing, ``before`` may have been mixed already.
    """
    if after.mixing is None:
        return False
    num_clients = before.num_clients
    if before.mixing is not None:
        num_clients = before.mixing.shape[1]
    return tuple(after.mixing.shape) == (after.num_clients, num_clients)


def _has_same_rows(before: RoundUpdates, after: RoundUpdates) -> bool:
    """Return whether the rows of both rounds are the same updates of the same clients."""
    if after.client_ids != before.client_ids:
        return False
    if after.client_updates is before.client_updates:
        return True
    return torch.equal(after.client_updates, before.client_updates)


class _Move:
    """Moves the model by coefficients of a round's updates, and remembers all destinations.

    Parameters
    ----------
    updates : RoundUpdates
        The round's replies, as the stages left them.
    proposed : Aggregation
        The rule's weights of them.
    """

    def __init__(self, updates: RoundUpdates, proposed: Aggregation) -> None:
        self._updates = updates
        self._proposed = proposed
        self._reached: list[Destination] = []

    def __call__(self, coefficients: Tensor) -> Destination:
        """Return the destination of a step by coefficients ``[m]``."""
        updates = self._updates
        taken = _taken(self._proposed, coefficients, updates.shortening)
        # Buffers are averaged by the same weights as parameters, but with their own shortening and
        # without the rescaling, since their lengths have nothing to do with the parameters'.
        for_buffers = taken.weights_alone * updates.buffer_shortening
        params, buffers = move_model(updates, coefficients, for_buffers)
        if taken.noise is not None:
            params = params + taken.noise
        destination = Destination(params, buffers, coefficients, taken.weights, taken.rescaling)
        self._reached.append(destination)
        return destination

    def has_led_to(self, destination: Destination) -> bool:
        """Tell whether ``destination`` is an object that this one has returned."""
        return any(destination is reached for reached in self._reached)


def _taken(proposed: Aggregation, coefficients: Tensor, shortening: Tensor) -> Aggregation:
    r"""Return the aggregation whose weights lead to coefficients.

    .. math:: p_i = a_i / f_i

    with :math:`p_i` the weights ``[m]``, :math:`a_i` the coefficients ``[m]`` and :math:`f_i` the
    ``shortening`` ``[m]`` of the updates; where :math:`f_i` is 0, the weight is 0. If the proposed
    weights lead to the coefficients, they are returned unchanged, without rounding.
    """
    if torch.equal(coefficients, proposed.weights * shortening):
        return proposed
    counted = shortening > 0
    # A user's own rule may give weights in float32.
    own_weights = proposed.weights.double()
    weights = torch.where(counted, coefficients.double() / shortening.double(), 0.0)
    total = own_weights[counted].sum()
    if not bool(total > 0):
        return replace(proposed, weights=weights)
    scaled = weights.sum() / total * own_weights
    if torch.allclose(weights[counted], scaled[counted], rtol=1e-9, atol=0.0):
        # The coefficients are a share of the proposed ones. So the weight is known even of a client
        # whose update is shortened to 0: it is the same share of the proposed weight.
        return replace(proposed, weights=torch.where(counted, weights, scaled))
    return replace(proposed, weights=weights, rescaling=_usual_rescaling(proposed))


def _usual_rescaling(proposed: Aggregation) -> Tensor | None:
    """Return the rescaling ``[m]`` for weights that the rule did not propose itself.

    The rule's own rescaling brings each update to a certain length with the weights that it
    proposed. With other weights each update gets the same factor: the mean of the rule's factors,
    weighted by its weights. ``None`` if the rule rescales nothing.
    """
    if proposed.rescaling is None:
        return None
    weights_alone = without_factors(proposed.weights, proposed.rescaling)
    usual = proposed.weights.sum() / weights_alone.sum()
    return torch.full_like(proposed.rescaling, float(usual))


def _only(stages: Sequence[_Stage], allowed: str) -> _Stage | None:
    """Return the only stage among ``stages``, if any; raise ConfigError if there are several."""
    if len(stages) > 1:
        raise ConfigError(f"stages: {stages}; allowed: {allowed}")
    if not stages:
        return None
    return stages[0]
