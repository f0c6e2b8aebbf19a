"""A stage, what it may do to a round, and the stages of a strategy in their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import CheckpointError, ConfigError, ValuationError
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates, largest_counters, move_model
from fedif_flower.valuation.validation import Validation


class Destination(NamedTuple):
    """Where a round leads, and what its updates were multiplied by.

    Attributes
    ----------
    params, buffers : Tensor
        ``[d]`` and ``[b]``: the model there.
    coefficients : Tensor
        ``[m]``: what the updates of the parameters were multiplied by.
    weights, rescaling : Tensor
        ``[m]``: the weights in these coefficients, and what of them brings updates to another
        length, as in :class:`~fedif_flower.round.Aggregation`.
    """

    params: Tensor
    buffers: Tensor
    coefficients: Tensor
    weights: Tensor
    rescaling: Tensor | None


@dataclass(frozen=True)
class Proposal:
    """The step that a round's weights propose.

    Attributes
    ----------
    updates : RoundUpdates
        The round's replies, as the stages left them.
    weights : Tensor
        ``[m]``: what the strategy gave them.
    move : callable
        Takes coefficients ``[m]`` and returns the :class:`Destination` that they lead to; raises
        ValuationError where the model would not be finite.
    optimizer : ServerOptimizer, optional
        Leads on from there.
    """

    updates: RoundUpdates
    weights: Tensor
    move: Callable[[Tensor], Destination]
    optimizer: ServerOptimizer | None = None

    @property
    def coefficients(self) -> Tensor:
        """The weights ``[m]`` times what shortens each update."""
        return self.weights * self.updates.shortening


class Stage(CheckedFields):
    """Does nothing to a round; a stage overrides what it needs, in the order of a round.

    What a stage remembers of earlier rounds belongs into :meth:`state_dict`, by which it also
    forgets a round that fails; one that remembers is for one strategy. Of one that is a dataclass,
    fields declared as settings are checked (see :mod:`fedif_flower.constructors`).
    """

    max_length = math.inf  # Of an update, where the stage bounds it as it arrives.
    needs_lengths_alone = False  # Where it says so, updates may be masked.
    makes_groups = False  # Whether the round that is weighed is one of groups, not of clients.

    def begin(self, validation: Validation | None) -> None:
        """Be told, before the first round, what the strategy judges by, if anything."""

    def require_updates(self, most: int, allowed: str) -> int:  # noqa: ARG002
        """Return how many updates the rule gets of at most so many that come in a round.

        Raises
        ------
        ConfigError
            If they are too few for a setting; ``allowed`` says how many there can be.
        """
        return most

    def why_updates_are_read(self) -> str:
        """Return why lengths and products of updates are not enough; empty if they are."""
        if self.needs_lengths_alone:
            return ""
        for hook in ("arrive", "before", "choose"):
            if _overrides(self, hook):
                return f"{type(self).__name__} looks at each update"
        return ""

    def arrive(self, update: Tensor, squared_norm: float) -> float:  # noqa: ARG002
        """Change an update ``[d]`` in place as it arrives, and return its squared norm."""
        return squared_norm

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round as the strategy is to weigh it.

        What is paid depends on whose work each row is: ``factors`` shorten updates, and
        ``updates.mixed(matrix)`` puts means of them in their place. A round whose rows changed in
        another way fails.
        """
        return updates

    def choose(self, proposal: Proposal) -> Destination:
        """Return where the round leads; at most one stage of a strategy says so.

        It is what ``proposal.move`` returned for some coefficients; otherwise the round fails.
        """
        return proposal.move(proposal.coefficients)

    def take_back(self) -> None:
        """Be told that the model goes back to the one before the last step."""

    def remark(self) -> str:
        """Return what a reader should know of it when the rounds are over; empty: nothing."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""


def _overrides(stage: Stage, hook: str) -> bool:
    """Tell whether a stage has a method of its own in place of one that does nothing."""
    return getattr(type(stage), hook) is not getattr(Stage, hook)


# In an optimizer's state: the options that its steps have changed, as some count them there.
_OPTIONS = "changed options"


class _Memory(NamedTuple):
    """What an optimizer remembers of the steps so far, and how many they are."""

    state: Mapping[str, Any] = {}
    num_steps: int = 0

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Memory:
        """Return what a saved state says of it."""
        return cls(state["state"], int(state["num_steps"]))


class ServerOptimizer(Stage):
    r"""Moves the model by what an optimizer makes of a round's step, taken for a gradient.

    .. math:: w_t = \mathrm{Opt}(w_{t-1}, -s_t)

    with :math:`s_t` the step that round t leads to without it. A failed round makes no step. Where
    a model is taken back, what the optimizer remembers goes with it. Buffers are averaged as ever.

    Parameters
    ----------
    make : callable
        Takes a list with the parameters ``[d]`` and returns their optimizer, such as
        ``partial(torch.optim.RMSprop, lr=0.01)``.
    """

    keeps_coefficients = False  # Whether a sum of updates times coefficients stays one.
    _memory = _Memory()
    _memory_before = _Memory()  # Of the model before this one.
    _begins_anew = False  # With the next step: what it remembers stays until that is made.

    def __init__(self, make: Callable[[list[Tensor]], Optimizer]) -> None:
        self._make = make

    def __repr__(self) -> str:
        """Name what makes the optimizer."""
        return f"{type(self).__name__}({self._make})"

    @property
    def moves_on(self) -> bool:
        """Whether the steps so far would move the model without a new one."""
        return bool(self._going_on.state)

    @property
    def shares(self) -> list[float]:
        """What each round's step counts for in the last one, the newest first; or empty."""
        return []

    def lead(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the parameters ``[d]`` that a step from ``before`` to ``after`` leads to."""
        return self._stepped(before, after)[0]

    def advance(self, before: Tensor, after: Tensor) -> Tensor:
        """Return what :meth:`lead` does, and let the optimizer remember the step."""
        params, state = self._stepped(before, after)
        num_steps = self._going_on.num_steps + 1
        self._memory_before = self._memory
        self._memory = _Memory(state, num_steps)
        self._begins_anew = False
        return params

    @property
    def _going_on(self) -> _Memory:
        """What the next step goes on with."""
        return _Memory() if self._begins_anew else self._memory

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Lead for a while as if there had been no steps."""
        before = self._begins_anew
        self._begins_anew = True
        try:
            yield
        finally:
            self._begins_anew = before

    def restart(self) -> None:
        """Go on as if there had been no steps; where the next one is taken back, there were."""
        self._begins_anew = True

    def take_back(self) -> None:
        """Forget the last step: the model that it made is taken back."""
        self._memory = self._memory_before
        self._begins_anew = False

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            **self._memory._asdict(),
            "before": self._memory_before._asdict(),
            "begins_anew": self._begins_anew,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._memory = _Memory.from_state(state)
        # Earlier versions did not keep what goes back with a model.
        self._memory_before = _Memory.from_state(state.get("before", state))
        self._begins_anew = bool(state.get("begins_anew", False))

    def require_step(self, params: Tensor) -> None:
        """Raise ConfigError unless it can take a step from these parameters ``[d]``.

        Nothing is remembered of the step.
        """
        try:
            self.lead(params, params)
        except Exception as error:  # out of a user's own optimizer, as likely as not
            raise ConfigError(
                f"stages: {self!r} takes no step: {type(error).__name__}: {error}; allowed: a "
                "function that takes a list of parameters and returns their torch.optim.Optimizer, "
                "whose step() needs nothing but their gradients"
            ) from error

    def _stepped(self, before: Tensor, after: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return where the optimizer goes ``[d]``, and what it then remembers."""
        params = before.clone()
        optimizer = self._make([params])
        group = optimizer.param_groups[0]
        if not any(value is params for value in group["params"]):
            raise ConfigError("the optimizer is not one of the parameters that it was given")
        options_before = _options_of(group)
        state = deepcopy(dict(self._going_on.state))
        group.update(state.pop(_OPTIONS, {}))
        optimizer.state[params].update(state)
        params.grad = before - after
        optimizer.step()
        state = dict(optimizer.state[params])
        changed = {
            name: value
            for name, value in _options_of(group).items()
            if name not in options_before or not _is_same(value, options_before[name])
        }
        if changed:
            state[_OPTIONS] = changed
        return params, state


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of what an optimizer's group holds beside its parameters."""
    return {name: deepcopy(value) for name, value in group.items() if name != "params"}


def _is_same(value: object, other: object) -> bool:
    """Tell whether an option still has its value."""
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return torch.equal(value, other)
    return type(value) is type(other) and value == other


def _says_whose(before: RoundUpdates, after: RoundUpdates) -> bool:
    """Return whether a round says of which clients' updates its rows are made."""
    if after.mixing is not before.mixing:
        if after.mixing is None:
            return False
        num_clients = before.num_clients if before.mixing is None else before.mixing.shape[1]
        return tuple(after.mixing.shape) == (after.num_clients, num_clients)
    if after.client_ids != before.client_ids:
        return False
    if after.client_updates is before.client_updates:
        return True
    return torch.equal(after.client_updates, before.client_updates)


def _weights_taken(
    coefficients: Tensor, shortening: Tensor, proposed: Tensor, rescaling: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the weights ``[m]`` that coefficients are once updates are shortened.

    With them comes what of them brings updates to another length, as ``rescaling`` is of the
    proposed weights (see :class:`~fedif_flower.round.Aggregation`). The proposed weights are
    returned to the bit where they lead to the coefficients.
    """
    if torch.equal(coefficients, proposed * shortening):
        return proposed, rescaling
    counted = shortening > 0
    weights = torch.where(counted, coefficients / shortening.to(coefficients), 0.0)
    total = proposed[counted].sum()
    if not bool(total > 0):
        return weights, rescaling
    share = weights.sum() / total
    if torch.allclose(weights[counted], share * proposed[counted], rtol=1e-9, atol=0.0):
        # Of who is shortened to nothing the share of the weight is known all the same.
        return torch.where(counted, weights, share * proposed), rescaling
    if rescaling is None:
        return weights, None
    # Other weights bring no update to a length of its own, but all to the usual one.
    without = torch.where(rescaling > 0, proposed / rescaling, 0.0)  # [m]
    return weights, torch.full_like(rescaling, float(proposed.sum() / without.sum()))


class Stages:
    """Applies stages in their order; without any, a round is taken as it is.

    Parameters
    ----------
    stages : sequence of Stage
        In the order in which they are applied.

    Raises
    ------
    ConfigError
        If something else is among them, or two stages choose where a round leads, or lead on.

    Attributes
    ----------
    arrive : callable, optional
        Changes an update ``[d]`` in place as it arrives, and returns its squared norm.
    choosing : Stage, optional
        The one that chooses where a round leads.
    optimizer : ServerOptimizer, optional
        The one that moves the model on after a round's own step.
    make_groups : bool
        Whether the strategy weighs groups of clients.
    max_length : float
        The longest that an update may be; infinite: there is no such bound.
    """

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        if not isinstance(stages, Iterable):
            raise ConfigError(f"stages = {stages!r}; allowed: a list of them, such as [Clip(2.0)]")
        for stage in stages:
            if not isinstance(stage, Stage):
                raise ConfigError(f"stages: {stage!r}; allowed: stages, such as Clip(2.0)")
        self._stages = tuple(stages)
        self._arriving = [stage for stage in stages if _overrides(stage, "arrive")]
        self._before = [stage for stage in stages if _overrides(stage, "before")]
        choosing = [stage for stage in stages if _overrides(stage, "choose")]
        if len(choosing) > 1:
            raise ConfigError(f"stages: {choosing}; allowed: one that chooses where a round leads")
        optimizers = [stage for stage in stages if isinstance(stage, ServerOptimizer)]
        if len(optimizers) > 1:
            raise ConfigError(f"stages: {optimizers}; allowed: one server optimizer")
        self.choosing = choosing[0] if choosing else None
        self.optimizer = optimizers[0] if optimizers else None
        self.arrive = self._arrive if self._arriving else None
        self.make_groups = any(stage.makes_groups for stage in stages)
        self.max_length = min((stage.max_length for stage in stages), default=math.inf)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    def __repr__(self) -> str:
        return repr(list(self._stages))

    def begin(self, validation: Validation | None) -> None:
        """Tell every stage what the strategy judges by."""
        for stage in self:
            stage.begin(validation)

    @property
    def remembering(self) -> list[Stage]:
        """Those that remember earlier rounds."""
        return [stage for stage in self if _overrides(stage, "state_dict")]

    def why_updates_are_read(self) -> str:
        """Return the first reason why updates have to be seen, if there is one."""
        for stage in self:
            reason = stage.why_updates_are_read()
            if reason:
                return reason
        return ""

    def require_updates(self, most: int, allowed: str) -> int:
        """Return how many updates a rule gets at most; raise ConfigError where a stage lacks some.

        Parameters
        ----------
        most : int
            Updates that come in a round at most.
        allowed : str
            How many that is, for errors.
        """
        for stage in self:
            most = stage.require_updates(most, allowed)
        return most

    def _arrive(self, update: Tensor, squared_norm: float) -> float:
        """Change an update ``[d]`` in place as it arrives, and return its squared norm."""
        for stage in self._arriving:
            squared_norm = stage.arrive(update, squared_norm)
        return squared_norm

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round as the strategy is to weigh it.

        Raises
        ------
        ValuationError
            If a stage does not say whose work a row is.
        """
        for stage in self._before:
            version = updates.client_updates._version  # It grows with each change in place.
            staged = stage.before(updates)
            in_place = updates.client_updates._version != version
            if in_place or not _says_whose(updates, staged):
                raise ValuationError(
                    f"stage {type(stage).__name__} changes updates without saying whose they are: "
                    "return updates.mixed(matrix) for means of them, factors for shorter ones"
                )
            if staged.num_clients != updates.num_clients and not stage.makes_groups:
                raise ValuationError(
                    f"stage {type(stage).__name__} makes {staged.num_clients} rows of "
                    f"{updates.num_clients}; a stage that makes groups has makes_groups = True"
                )
            updates = staged
        return updates

    def settle(self, updates: RoundUpdates, proposed: Aggregation) -> Destination:
        """Return where the weights of a round lead; each way there ends with their noise.

        Raises
        ------
        ValuationError
            If the model is not finite, no step leads to a finite validation loss, or a stage
            leads where no coefficients do.
        """
        reached: list[Destination] = []

        def move(coefficients: Tensor) -> Destination:
            weights, rescaling = _weights_taken(
                coefficients, updates.shortening, proposed.weights, proposed.rescaling
            )
            # Whatever is chosen, buffers go by the same weights as parameters, lengths aside.
            weights_alone = replace(proposed, weights=weights, rescaling=rescaling).weights_alone
            for_buffers = weights_alone * updates.buffer_shortening
            params, buffers = move_model(updates, coefficients, for_buffers)
            if proposed.noise is not None:
                params = params + proposed.noise
            destination = Destination(params, buffers, coefficients, weights, rescaling)
            reached.append(destination)
            return destination

        proposal = Proposal(updates, proposed.weights, move, self.optimizer)
        if self.choosing is None:
            return move(proposal.coefficients)
        chosen = self.choosing.choose(proposal)
        if not any(chosen is destination for destination in reached):
            raise ValuationError(
                f"stage {type(self.choosing).__name__} leads where no coefficients of the updates "
                "do: return what proposal.move(coefficients) returns"
            )
        return chosen

    def combined(
        self, updates: RoundUpdates, aggregation: Aggregation
    ) -> tuple[ModelVectors, Aggregation]:
        """Return the model that a round leads to, and the weights and coefficients that it took."""
        if updates.unseen is not None:
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
        """Return the state of each stage, in their order."""
        return {"stages": [[type(stage).__name__, stage.state_dict()] for stage in self]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises
        ------
        CheckpointError
            If it is the state of other stages.
        """
        saved = state["stages"]
        saved_names = [name for name, _ in saved]
        if saved_names != [type(stage).__name__ for stage in self]:
            raise CheckpointError(f"stages: {self}; saved: {saved_names}")
        for stage, (_, stage_state) in zip(self, saved, strict=True):
            stage.load_state_dict(stage_state)
