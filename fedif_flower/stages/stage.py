"""The base class of stages, and the stage that moves the model by an optimizer."""

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
    """The model that a round leads to, and the coefficients by which it was made.

    Attributes
    ----------
    params, buffers : Tensor
        ``[d]`` and ``[b]``: the model.
    coefficients : Tensor
        ``[m]``: the numbers by which the updates of the parameters were multiplied.
    weights : Tensor
        ``[m]``: the coefficients without the factors that shorten updates.
    rescaling : Tensor, optional
        ``[m]``: the part of the weights that brings updates to another length, as in
        :class:`~fedif_flower.round.Aggregation`.
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
        ``[m]``: the strategy's weights of the updates.
    move : callable
        Takes coefficients ``[m]``, and returns the :class:`Destination` that they lead to. Raises
        ValuationError if that model is not finite.
    optimizer : ServerOptimizer, optional
        The server optimizer, which moves the model on from the destination.
    """

    updates: RoundUpdates
    weights: Tensor
    move: Callable[[Tensor], Destination]
    optimizer: ServerOptimizer | None = None

    @property
    def coefficients(self) -> Tensor:
        """The proposed coefficients ``[m]``: the weights times the factors that shorten updates."""
        return self.weights * self.updates.shortening


class Stage(CheckedFields):
    """Leaves rounds as they are; a stage overrides the methods that it needs.

    In a round :meth:`arrive` is called first, for each reply; then :meth:`before`, before the
    updates are weighed; then :meth:`choose`, when they have weights.

    A stage that remembers earlier rounds returns all of that in :meth:`state_dict`: checkpoints
    keep it, and after a failed round the stage is set back by :meth:`load_state_dict`. Such a stage
    belongs to one strategy. If a stage is a dataclass, its fields that are declared as settings are
    checked (see :mod:`fedif_flower.constructors`).
    """

    max_length = math.inf  # The length to which the stage shortens updates as they arrive.
    # Whether the stage needs no more of updates than their lengths. Then updates may be hidden from
    # the server, although the stage overrides `arrive`, `before` or `choose`.
    needs_lengths_alone = False
    makes_groups = False  # Whether the stage replaces the clients by groups of them.

    def begin(self, validation: Validation | None) -> None:
        """Take in the strategy's validation set, if it has one, before the first round."""

    def require_updates(self, count: int, allowed: str) -> int:  # noqa: ARG002
        """Return how many updates the rule gets if a round closes with ``count`` of them.

        Raises
        ------
        ConfigError
            If they are too few for a setting; ``allowed`` says how many there can be.
        """
        return count

    def why_updates_are_read(self) -> str:
        """Return why the stage has to see the updates themselves; empty if it has not."""
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

        A stage changes updates in two ways only: it sets ``factors`` to shorten them, or calls
        ``updates.mixed(matrix)`` to replace them by means of them. Then it is known of which
        clients' updates each row is made, as contributions need it. A round whose rows change in
        another way fails. Changes in place are noticed if PyTorch counts them, which it does not
        for changes by NumPy or through ``data``.
        """
        return updates

    def choose(self, proposal: Proposal) -> Destination:
        """Return where the round leads; at most one stage of a strategy overrides this.

        The result has to be one that ``proposal.move`` returned; otherwise the round fails.
        """
        return proposal.move(proposal.coefficients)

    def take_back(self) -> None:
        """Forget the last step: the model goes back to the one before it."""

    def remark(self) -> str:
        """Return a sentence for the log when the rounds are over; empty if there is none."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""


def overrides(stage: Stage, hook: str) -> bool:
    """Tell whether a stage's class overrides a method of :class:`Stage`."""
    return getattr(type(stage), hook) is not getattr(Stage, hook)


# The key in an optimizer's saved state for options (such as ``lr``) that its steps have changed:
# some optimizers count their steps there.
_OPTIONS = "changed options"


class _OptimizerMemory(NamedTuple):
    """The state that an optimizer keeps between steps, and the number of steps so far."""

    state: Mapping[str, Any] = {}
    num_steps: int = 0

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _OptimizerMemory:
        """Return the memory that a checkpoint holds."""
        return cls(state["state"], int(state["num_steps"]))


class ServerOptimizer(Stage):
    r"""Moves the model by an optimizer that is given each round's step as a negative gradient.

    .. math:: w_t = \mathrm{Opt}(w_{t-1}, -s_t)

    with :math:`w_t` the model after round t, and :math:`s_t` the step that the round makes without
    the optimizer, so that :math:`-s_t` is the gradient. A failed round makes no step. If a model
    is taken back, so is the optimizer's state. Buffers are averaged as without an optimizer.

    Parameters
    ----------
    make : callable
        Takes a list with one tensor, the parameters ``[d]``, and returns an optimizer of them, such
        as ``partial(torch.optim.RMSprop, lr=0.01)``. It is called anew for each step.
    """

    # Whether the model's step is a sum of updates times coefficients if each round's step is one.
    keeps_coefficients = False
    _memory = _OptimizerMemory()
    _memory_before = _OptimizerMemory()  # The memory that belongs to the model before this one.
    # Whether the next step is made without memory. The memory is kept until that step is made, in
    # case the model is taken back.
    _begins_anew = False

    def __init__(self, make: Callable[[list[Tensor]], Optimizer]) -> None:
        self._make = make

    def __repr__(self) -> str:
        """Return the class and the function that makes the optimizer."""
        return f"{type(self).__name__}({self._make})"

    @property
    def moves_on(self) -> bool:
        """Whether the optimizer may move the model even if a round's own step is 0."""
        return bool(self._active_memory.state)

    @property
    def step_factors(self) -> list[float]:
        """The factor of each round's step in the model's last step, the newest first.

        Empty if the model's step is no such sum.
        """
        return []

    def lead(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the parameters ``[d]`` to which the optimizer leads; remember nothing.

        ``before`` and ``after`` are ``[d]``: the model before and after the round's own step.
        """
        return self._stepped(before, after)[0]

    def advance(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the same parameters as :meth:`lead`, and remember the step."""
        params, state = self._stepped(before, after)
        num_steps = self._active_memory.num_steps + 1
        self._memory_before = self._memory
        self._memory = _OptimizerMemory(state, num_steps)
        self._begins_anew = False
        return params

    @property
    def _active_memory(self) -> _OptimizerMemory:
        """The memory that the next step starts from."""
        return _OptimizerMemory() if self._begins_anew else self._memory

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Let :meth:`lead` work without memory, as before the first step, inside the block."""
        before = self._begins_anew
        self._begins_anew = True
        try:
            yield
        finally:
            self._begins_anew = before

    def restart(self) -> None:
        """Make the next step without memory, as the first one.

        If the model after that step is taken back, the present memory returns with it.
        """
        self._begins_anew = True

    def take_back(self) -> None:
        """Forget the last step, since the model that it made is taken back."""
        self._memory = self._memory_before
        self._begins_anew = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        return {
            **self._memory._asdict(),
            "before": self._memory_before._asdict(),
            "begins_anew": self._begins_anew,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._memory = _OptimizerMemory.from_state(state)
        # States that earlier versions saved lack these two.
        self._memory_before = _OptimizerMemory.from_state(state.get("before", state))
        self._begins_anew = bool(state.get("begins_anew", False))

    def require_step(self, params: Tensor) -> None:
        """Raise ConfigError unless the optimizer can take a step of 0 from parameters ``[d]``.

        The step is not remembered.
        """
        try:
            led_to = self.lead(params, params)
            if not all_finite(led_to):
                raise ValueError("where a gradient is 0 it leads to NaN or Inf")
        except Exception as error:  # Any error, since the optimizer may be a user's own.
            raise ConfigError(
                f"stages: {self!r} takes no step: {type(error).__name__}: {error}; allowed: a "
                "function that takes a list of parameters and returns their torch.optim.Optimizer, "
                "whose step() needs nothing but their gradients"
            ) from error

    def _stepped(self, before: Tensor, after: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return the parameters ``[d]`` after the optimizer's step, and its state then.

        The optimizer is made anew, given the remembered state, and makes one step. So its state is
        plain data that can be saved, set back, or tried without consequences.
        """
        params = before.clone()
        optimizer = self._make([params])
        group = optimizer.param_groups[0]
        if not any(value is params for value in group["params"]):
            raise ConfigError("the optimizer is not one of the parameters that it was given")
        options_before = _options_of(group)
        state = deepcopy(dict(self._active_memory.state))
        group.update(state.pop(_OPTIONS, {}))
        optimizer.state[params].update(state)
        params.grad = before - after
        optimizer.step()
        state = dict(optimizer.state[params])
        changed = {}
        for name, value in _options_of(group).items():
            is_unchanged = name in options_before and _is_same(value, options_before[name])
            if not is_unchanged:
                changed[name] = value
        if changed:
            state[_OPTIONS] = changed
        return params, state


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the options of an optimizer's parameter group, such as ``lr``."""
    return {name: deepcopy(value) for name, value in group.items() if name != "params"}


def _is_same(value: object, other: object) -> bool:
    """Tell whether two values of an option are the same, in type and value."""
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return torch.equal(value, other)
    return type(value) is type(other) and value == other
