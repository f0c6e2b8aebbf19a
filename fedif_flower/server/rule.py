"""What a strategy weighs by: a rule, what of it remembers rounds, and where a step leads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from fedif_flower.arithmetic import all_finite
from fedif_flower.combining import combine_buffers, largest_counters
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.server.summary import shown_setting
from fedif_flower.tasks.structures import describe


@runtime_checkable
class Rule(Protocol):
    """Takes a round's updates; returns weights ``[m]`` as an Aggregation, or a step ``[d]``.

    Strategies are rules by their :meth:`~fedif_flower.strategies.ScreenedStrategy.weigh`; any other
    callable by :class:`~fedif_flower.strategies.robust_rule.RobustRule`.
    """

    def __call__(self, updates: RoundUpdates) -> Aggregation | Tensor:
        """Return what the rule makes of the updates."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A part that remembers earlier rounds.

    Its state is made of dicts, lists, Python's own numbers (no NumPy's), strings, ``None`` and
    tensors, so that it can be read back without running code. Clients are named in it by their
    lasting ``client_id`` (see :class:`~fedif_flower.messages.client_node.ClientNode`).
    """

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on; later rounds do not change it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        ...


# The attribute of a part that remembers rounds, by which it is known whose rounds they are.
_ROUNDS_OF = "_rounds_of"


def require_own(parts: Iterable[object], key: object) -> None:
    """Raise ConfigError where a part remembers the rounds of another strategy.

    Parameters
    ----------
    parts : iterable of object
        What remembers rounds.
    key : object
        Stands for the strategy, as in :func:`claim`.
    """
    for part in parts:
        if getattr(part, _ROUNDS_OF, key) is not key:
            raise ConfigError(
                f"{shown_setting(part)} remembers the rounds of another strategy; allowed: a new "
                "one for each strategy"
            )


def claim(parts: Iterable[object], key: object) -> None:
    """Note that parts remember the rounds of one strategy from now on."""
    for part in parts:
        with suppress(AttributeError):  # One with __slots__ has no room for it.
            object.__setattr__(part, _ROUNDS_OF, key)  # Frozen dataclasses, too.


def require_answer(
    answer: object,
    updates: RoundUpdates,
    *,
    whose: str,
    combines_updates: bool,
    said_by: str,
    sets_lengths: bool = False,
) -> Aggregation | Tensor:
    """Return a rule's answer.

    Parameters
    ----------
    answer : object
        What the rule returned.
    updates : RoundUpdates
        What it was given: m updates of a model ``[d]``.
    whose : str
        The rule, for errors.
    combines_updates : bool
        Whether it has to return weights ``[m]``; else a step ``[d]``.
    said_by : str
        The attribute that says so, for errors.
    sets_lengths : bool
        Whether its weights may bring updates to another length.

    Raises
    ------
    ValuationError
        If the answer is the other of the two, or of another shape; or its weights are not finite,
        or have a rescaling which they may not have.
    """
    if combines_updates:
        shape = updates.squared_norms.shape
        # A rule of somebody else's may have put anything there.
        if isinstance(answer, Aggregation) and _is_tensor_of(answer.weights, shape):
            if answer.rescaling is not None and not sets_lengths:
                raise ValuationError(
                    "the rule's weights have a rescaling: its sets_lengths has to say so"
                )
            if not all_finite(answer.weights):
                raise ValuationError(
                    f"{whose} returned weights that are not finite; allowed: a number for each of "
                    f"{len(answer.weights)} updates"
                )
            return answer
        expected = "an Aggregation of weights [m]"
    else:
        shape = updates.global_params.shape
        if _is_tensor_of(answer, shape):
            return answer
        expected = "a step [d]"
    raise ValuationError(
        f"{whose} returned {_words_of(answer)}; allowed: {expected}, of shape {list(shape)}, as "
        f"{said_by} = {combines_updates} says"
    )


def _words_of(answer: object) -> str:
    """Return the kind and shape of what a rule returned, for an error."""
    if isinstance(answer, Aggregation):
        return f"an Aggregation of weights {describe(answer.weights)}"
    return describe(answer)


def _is_tensor_of(value: object, shape: torch.Size) -> TypeGuard[Tensor]:
    """Return whether a value, which a rule of somebody else's gave, is a tensor of a shape."""
    return isinstance(value, Tensor) and value.shape == shape


def take_step(updates: RoundUpdates, step: Tensor) -> tuple[ModelVectors, Aggregation]:
    """Return the model one step ``[d]`` on; buffers are averaged, and no client has a weight: NaN.

    Raises
    ------
    ValuationError
        If the model is not finite.
    """
    # In the model's own dtype: what members send back is compared with what they received.
    params = (updates.global_params + step.to(updates.global_params)).cpu()
    if not all_finite(params):
        raise ValuationError("the aggregated model is not finite")
    weights = torch.full((updates.num_clients,), torch.nan)
    shares = updates.buffer_shortening / updates.num_clients
    buffers = combine_buffers(updates.global_buffers, updates.buffer_updates, shares).cpu()
    counters = largest_counters(updates.model.counters, updates.counters, weights)
    return ModelVectors(params, buffers, counters), Aggregation(weights=weights)
