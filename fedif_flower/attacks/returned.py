"""Checks of what an attack's hooks return, since a user's own attack may return anything."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour
from fedif_flower.errors import ConfigError
from fedif_flower.tasks.batches import tensor_pair
from fedif_flower.tasks.structures import describe


def require_vector(acting: Behaviour, poisoned: Any, trained: Tensor) -> None:
    """Raise ConfigError unless ``poison_update`` returned a vector ``[d]``, shaped as trained."""
    if not isinstance(poisoned, Tensor) or poisoned.shape != trained.shape:
        raise ConfigError(
            f"attack {type(acting).__name__}: poison_update must return a vector of shape "
            f"{list(trained.shape)}, not {describe(poisoned)}"
        )


def require_rows(acting: Behaviour, hook: str, poisoned: Any, count: int) -> None:
    """Raise ConfigError unless a hook returned a tensor ``[count, ...]``, a row per example."""
    is_tensor = isinstance(poisoned, Tensor) and poisoned.dim() > 0
    if not is_tensor or len(poisoned) != count:
        raise ConfigError(
            f"attack {type(acting).__name__}: {hook} must return a tensor of {count} examples, not "
            f"{describe(poisoned)}"
        )


def require_examples(acting: Behaviour, examples: Any) -> None:
    """Raise ConfigError unless ``poison_examples`` returned inputs and labels of one length."""
    if tensor_pair(examples) is None:
        raise ConfigError(
            f"attack {type(acting).__name__}: poison_examples must return inputs and labels of one "
            f"length, not {describe(examples)}"
        )


def require_updates(attack: str, agreed: Any, honest: Tensor) -> None:
    """Raise ConfigError unless ``collude`` returned updates ``[k, d]``, shaped as it got them."""
    if not isinstance(agreed, Tensor) or agreed.shape != honest.shape:
        raise ConfigError(
            f"attack {attack!r} must return updates of shape {list(honest.shape)}, not "
            f"{describe(agreed)}"
        )
