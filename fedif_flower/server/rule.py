"""The protocols of a rule and of a part that remembers rounds; checks of what a rule returns."""

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

    A strategy has its rule in :meth:`~fedif_flower.strategies.ScreenedStrategy.weigh`. Any other
    callable becomes a strategy by :class:`~fedif_flower.strategies.robust_rule.RobustRule`.
    """

    def __call__(self, updates: RoundUpdates) -> Aggregation | Tensor:
        """Return the weights ``[m]`` of the updates, or the step ``[d]`` to take."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A part that remembers earlier rounds.

    Its state consists of dicts, lists, Python's own numbers (not NumPy's), strings, ``None`` and
    tensors: a checkpoint can then be read without running code. The state names clients by their
    lasting ``client_id`` (see :class:`~fedif_flower.messages.client_node.ClientNode`).
    """

    def state_dict(self) -> dict[str, Any]:
        """Return all that a run needs to go on, as a copy that later rounds do not change."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        ...


# The attribute of a part that remembers rounds: the key of the strategy whose rounds they are.
_ROUNDS_OF = "_rounds_of"


def require_own(parts: Iterable[object], key: object) -> None:
    """Raise ConfigError if a part remembers the rounds of another strategy.

    Parameters
    ----------
    parts : iterable of object
        The strategy's parts that remember rounds.
    key : object
        The strategy's key, with which it calls :func:`claim`.
    """
    for part in parts:
        if getattr(part, _ROUNDS_OF, key) is not key:
            raise ConfigError(
                f"{shown_setting(part)} remembers the rounds of another strategy; allowed: a new "
                "one for each strategy"
            )


def claim(parts: Iterable[object], key: object) -> None:
    """Mark parts as remembering the rounds of the strategy that has this key."""
    for part in parts:
        with suppress(AttributeError):  # An object with __slots__ cannot be marked.
            # `object.__setattr__` also works on frozen dataclasses.
            object.__setattr__(part, _ROUNDS_OF, key)


def require_answer(
    answer: object,
    updates: RoundUpdates,
    *,
    whose: str,
    combines_updates: bool,
    said_by: str,
    sets_lengths: bool,
) -> Aggregation | Tensor:
    """Return a rule's answer, checked.

    Parameters
    ----------
    answer : object
        The value that the rule returned.
    updates : RoundUpdates
        The round: m updates of a model ``[d]``.
    whose : str
        The rule's name, for errors.
    combines_updates : bool
        Whether the rule has to return an Aggregation with weights ``[m]``; otherwise a step
        ``[d]``.
    said_by : str
        The attribute that says which of the two, for errors.
    sets_lengths : bool
        Whether its weights may contain factors that bring updates to another length
        (``rescaling``).

    Raises
    ------
    ValuationError
        If the answer is not of the kind or shape that ``combines_updates`` says, its weights are
        not finite, or it has a ``rescaling`` without ``sets_lengths``.
    """
    if combines_updates:
        shape = updates.squared_norms.shape
        # A user's own rule may have put anything in place of the weights.
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
    """Return words for the kind and shape of a rule's answer, for an error."""
    if isinstance(answer, Aggregation):
        return f"an Aggregation of weights {describe(answer.weights)}"
    return describe(answer)


def _is_tensor_of(value: object, shape: torch.Size) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor of this shape."""
    return isinstance(value, Tensor) and value.shape == shape


def take_step(updates: RoundUpdates, step: Tensor) -> tuple[ModelVectors, Aggregation]:
    """Return the model after a step ``[d]``, and an Aggregation whose weights are NaN.

    Buffers are averaged over the clients. The weights ``[m]`` are NaN because no client has a
    weight in a step.

    Raises
    ------
    ValuationError
        If the new model is not finite.
    """
    # In the model's own dtype, since the next updates are differences from these parameters.
    params = (updates.global_params + step.to(updates.global_params)).cpu()
    if not all_finite(params):
        raise ValuationError("the aggregated model is not finite")
    weights = torch.full((updates.num_clients,), torch.nan)
    shares = updates.buffer_shortening / updates.num_clients
    buffers = combine_buffers(updates.global_buffers, updates.buffer_updates, shares).cpu()
    counters = largest_counters(updates.model.counters, updates.counters, weights)
    return ModelVectors(params, buffers, counters), Aggregation(weights=weights)
