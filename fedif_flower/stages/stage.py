"""What a stage may do to a round, and the stage that moves the model by an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedif_flower.arithmetic import all_finite
from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ConfigError
from fedif_flower.round import RoundUpdates
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

    def require_updates(self, count: int, allowed: str) -> int:  # noqa: ARG002
        """Return how many updates the rule gets of so many, on which a round may close.

        Raises
        ------
        ConfigError
            If they are too few for a setting; ``allowed`` says how many there can be.
        """
        return count

    def why_updates_are_read(self) -> str:
        """Return why lengths and products of updates are not enough; empty if they are."""
        if self.needs_lengths_alone:
            return ""
        for hook in ("arrive", "before", "choose"):
            if overrides(self, hook):
                return f"{type(self).__name__} looks at each update"
        return ""

    def arrive(self, update: Tensor, squared_norm: float) -> float:  # noqa: ARG002
        """Change an update ``[d]`` in place as it arrives, and return its squared norm."""
        return squared_norm

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round as the strategy is to weigh it.

        What is paid depends on whose work each row is: ``factors`` shorten updates, and
        ``updates.mixed(matrix)`` puts means of them in their place. A round whose rows changed in
        another way fails, as far as PyTorch counts changes: not those by NumPy or through ``data``.
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


def overrides(stage: Stage, hook: str) -> bool:
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
            led_to = self.lead(params, params)
            if not all_finite(led_to):
                raise ValueError("where a gradient is 0 it leads to NaN or Inf")
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
