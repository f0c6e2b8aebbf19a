"""How thoroughly a data set is examined: which models are trained on its folds, and how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

FOLDS = 5
_MANY = 1000  # Examples.
_BATCH = 32
_LARGE_BATCH = 64  # Of many examples.
_LEAST_STEPS = 150
_LEAST_EPOCHS = 8


class Grid(NamedTuple):
    """With which corrections models are trained, and after how many epochs they are asked.

    Attributes
    ----------
    corrections : tuple of float or Tensor
        The shares of wrong labels that the training loss allows for, or chances ``[C, C]``.
    epochs : tuple of int
        Rising.
    """

    corrections: tuple[float | Tensor, ...]
    epochs: tuple[int, ...]

    @property
    def size(self) -> tuple[int, int]:
        """How many models are trained, and for how many epochs."""
        return len(self.corrections) * FOLDS, self.epochs[-1]

    def words(self) -> str:
        """Say how large it is."""
        return _size_words(self.size)


def _size_words(size: tuple[int, int]) -> str:
    trainings, epochs = size
    return f"{trainings} trainings of {epochs} epochs on {FOLDS} folds"


@dataclass(frozen=True)
class Way:
    """How a data set was examined: so it can be examined again.

    Attributes
    ----------
    model : {"own", "regression"}
        Which one was trained: the task's own, or a logistic regression on what its last layer is
        given.
    trainings : int
        How many models.
    epochs : int
        For how many epochs each.
    is_reduced : bool
        Whether fewer were trained than usual, to save time.
    """

    model: Literal["own", "regression"]
    trainings: int
    epochs: int
    is_reduced: bool = False

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Way | None:
        """Read what ``asdict`` returned; ``None`` stays ``None``."""
        return None if record is None else cls(**record)

    @property
    def size(self) -> tuple[int, int]:
        """That of the grid."""
        return self.trainings, self.epochs

    @property
    def is_cut_short(self) -> bool:
        """Whether there was no time for more, so that a faster machine might find another share."""
        return self.is_reduced or self.model == "regression"

    def words(self) -> str:
        """Say it."""
        words = _size_words(self.size)
        if self.model == "own":
            return f"{words}, fewer than usual to save time" if self.is_reduced else words
        features = "on the features of the untrained model, which is too large to train"
        return f"logistic regression {features}: {words}"


def grids(num_training: int) -> list[Grid]:
    """Return what may be trained on so many examples, the most thorough first.

    Many examples tell the share by themselves, whatever the correction in training.
    """
    steps = steps_of(num_training)
    most = max(math.ceil(_LEAST_STEPS / steps), _LEAST_EPOCHS)
    epochs = [max(math.ceil(most / part), 1) for part in (8, 4, 2, 1)]
    all_epochs = tuple(sorted(set(epochs)))
    fewer_epochs = all_epochs[:-1] or all_epochs
    least = [Grid((0.15,), all_epochs), Grid((0.15,), fewer_epochs)]
    if num_training >= _MANY:
        return least
    return [Grid((0.0, 0.3), all_epochs), *least]


def steps_of(num_training: int) -> int:
    """Return how many batches of about one size an epoch has."""
    size = _BATCH if num_training < _MANY else _LARGE_BATCH
    return max(round(num_training / size), 1)
