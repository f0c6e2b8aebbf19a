"""The protocol of a valuation: it scores a round's clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from fedif_flower.round import RoundUpdates
from fedif_flower.valuation.validation import Validation


@dataclass(frozen=True)
class Scores:
    """A round's raw scores.

    Attributes
    ----------
    values : Tensor
        ``[m]``, finite; more is better.
    influences : Tensor, optional
        ``[m]``: un-normalised influences, which the ledger sums up.
    evaluations : int
        Passes over the validation set that the scores took.
    resolution : float
        Two scores no further apart than this, >= 0, may differ by rounding alone.
    """

    values: Tensor
    influences: Tensor | None = None
    evaluations: int = 0
    resolution: float = 0.0


@runtime_checkable
class Valuation(Protocol):
    """Scores a round's clients."""

    @property
    def validation(self) -> Validation | None:
        """The held-out data behind the scores, by which steps are judged; ``None``: none.

        Without any, the valuation itself has their ``parameter_names`` and ``tied_names``.
        """

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Begin what depends on the global model alone, while clients train."""

    def score(self, updates: RoundUpdates) -> Scores:
        """Score the round's clients."""
