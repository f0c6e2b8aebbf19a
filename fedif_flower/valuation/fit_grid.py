"""How thoroughly a data set is examined: which models are trained on its folds, and how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

FOLDS = 5
# From so many training examples on, batches are larger and one correction is enough.
_MANY_EXAMPLES = 1000
_BATCH = 32
_LARGE_BATCH = 64
_LEAST_STEPS = 150  # The longest training has at least so many steps,
_LEAST_EPOCHS = 8  # and at least so many epochs.


class FitGrid(NamedTuple):
    """The corrections with which models are trained, and the epochs after which they predict.

    Attributes
    ----------
    corrections : tuple of float or Tensor
        The shares of wrong labels for which the training loss is corrected, or chances ``[C, C]``.
    epochs : tuple of int
        Numbers of epochs, ascending; a training ends after the last.
    """

    corrections: tuple[float | Tensor, ...]
    epochs: tuple[int, ...]

    @property
    def size(self) -> tuple[int, int]:
        """How many models are trained, and for how many epochs."""
        return len(self.corrections) * FOLDS, self.epochs[-1]

    def words(self) -> str:
        """Return the size in words."""
        return _size_words(self.size)


def _size_words(size: tuple[int, int]) -> str:
    """Return a grid's size in words."""
    trainings, epochs = size
    return f"{trainings} trainings of {epochs} epochs on {FOLDS} folds"


@dataclass(frozen=True)
class Way:
    """How a data set was examined, so that the examination can be repeated in the same way.

    Attributes
    ----------
    model : {"own", "regression"}
        The model that was trained: the task's own, or a logistic regression on the inputs of its
        last layer.
    trainings : int
        How many models were trained.
    epochs : int
        For how many epochs each was trained.
    is_reduced : bool
        Whether fewer models or epochs were trained than usual, to save time.
    """

    model: Literal["own", "regression"]
    trainings: int
    epochs: int
    is_reduced: bool = False

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Way | None:
        """Return the way in a record that ``asdict`` made; ``None`` for ``None``."""
        return None if record is None else cls(**record)

    @property
    def size(self) -> tuple[int, int]:
        """The :attr:`FitGrid.size` of the grid that was trained."""
        return self.trainings, self.epochs

    @property
    def is_cut_short(self) -> bool:
        """Whether time was short, so that a faster machine might estimate another share."""
        return self.is_reduced or self.model == "regression"

    def words(self) -> str:
        """Return the way in words."""
        words = _size_words(self.size)
        if self.model == "own":
            return f"{words}, fewer than usual to save time" if self.is_reduced else words
        features = "on the features of the untrained model, which is too large to train"
        return f"logistic regression {features}: {words}"


def grids(num_training: int) -> list[FitGrid]:
    """Return the grids that may be trained on so many examples, the most thorough first.

    Many examples tell the share of wrong labels whatever the correction in training: then there is
    one correction only.
    """
    steps = steps_of(num_training)
    most = max(math.ceil(_LEAST_STEPS / steps), _LEAST_EPOCHS)
    epochs = [max(math.ceil(most / part), 1) for part in (8, 4, 2, 1)]
    all_epochs = tuple(sorted(set(epochs)))
    fewer_epochs = all_epochs[:-1] or all_epochs
    least = [FitGrid((0.15,), all_epochs), FitGrid((0.15,), fewer_epochs)]
    if num_training >= _MANY_EXAMPLES:
        return least
    return [FitGrid((0.0, 0.3), all_epochs), *least]


def steps_of(num_training: int) -> int:
    """Return how many batches of about equal size an epoch has."""
    size = _BATCH if num_training < _MANY_EXAMPLES else _LARGE_BATCH
    return max(round(num_training / size), 1)
