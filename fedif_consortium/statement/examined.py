"""The record, in a run's provenance, of how its held-out set was examined before round 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from fedif_consortium.evidence.signed import first_error
from fedif_flower.errors import ConfigError
from fedif_flower.run.secret_validation import PAYING_KEY, examined_key, is_secret
from fedif_flower.valuation.held_out import confused_share


@dataclass(frozen=True)
class Examined:
    """An examination of held-out labels, as ``provenance.json`` records it.

    A run that examined nothing has the correction alone.

    Attributes
    ----------
    corrected_noise : float
        The share of wrong labels for which the loss is corrected; 0: it is not.
    corrected_by_class : bool
        Whether the correction is by ``transitions``.
    examples : int, optional
        The number of held-out examples that count; ``None``: they were not examined.
    noise, low, high : float, optional
        The share of labels that look wrong, and the ends of its 90 % interval.
    by_class : float, optional
        The share of wrong labels by an estimate in which each class has chances of its own.
    transitions : tuple of tuple of float
        Row k has the chances with which examples of class k are labelled as each class.
    missing : tuple of int
        Classes of which no example counts.
    rare : mapping of int to int
        The number of examples of each class that has fewer than 10, by class.
    """

    corrected_noise: FiniteFloat = 0.0
    corrected_by_class: bool = False
    examples: int | None = None
    noise: FiniteFloat | None = None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    by_class: FiniteFloat | None = None
    transitions: tuple[tuple[FiniteFloat, ...], ...] = ()
    missing: tuple[int, ...] = ()
    rare: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError if the corrected share contradicts the chances of each class.

        The share of wrong labels in a set is a mean over its classes of each class's chance of a
        wrong label. So it lies between the smallest and the largest of these chances. A replay
        recomputes the chances.
        """
        if not self.corrected_by_class:
            return
        num_classes = len(self.transitions)
        is_square = all(len(row) == num_classes for row in self.transitions)
        if not num_classes or not is_square:
            raise ValueError("corrected_by_class is true, but transitions are no square matrix")
        wrong = [1 - row[label] for label, row in enumerate(self.transitions)]
        if not min(wrong) - 1e-9 <= self.corrected_noise <= max(wrong) + 1e-9:
            raise ValueError(
                f"corrected_noise = {self.corrected_noise}, which does not follow from "
                f"transitions: by these it lies between {min(wrong):g} and {max(wrong):g}"
            )

    @property
    def is_corrected_within_an_interval(self) -> bool:
        """Whether the loss is corrected for one share of wrong labels out of an interval."""
        if self.low is None or self.high is None or self.corrected_by_class:
            return False
        return self.corrected_noise > 0 and self.low < self.high

    @property
    def confused(self) -> float:
        """The share of labels that may be confused by class; 0: not more than models confuse."""
        return confused_share(self.noise, self.by_class)

    @property
    def surely_uncorrected(self) -> float:
        """The share of wrong labels beyond the loss's correction, at the interval's low end."""
        return max((self.low or 0.0) - self.corrected_noise, 0.0)

    @property
    def possibly_uncorrected(self) -> float:
        """The share of wrong labels beyond the loss's correction, at the interval's high end.

        The share of labels that may be confused by class is taken in its place if it is larger.
        """
        most = max(self.high or 0.0, self.confused)
        return max(most - self.corrected_noise, 0.0)


def read_examined(provenance: Mapping[str, Any]) -> Examined:
    """Return the recorded examination of the held-out set that a run pays by.

    Raises
    ------
    ConfigError
        If the record cannot be read.
    """
    key = examined_key(provenance)
    record = provenance.get(key, {})
    try:
        examined = TypeAdapter(Examined).validate_python(record)
    except ValidationError as error:
        raise ConfigError(f"provenance.json: {key}: {first_error(error)}") from error
    if is_secret(provenance) and key != PAYING_KEY:
        # The run is of an earlier version. It examined the validation split, not the secret data
        # that pay, and corrected the loss on both for the same share.
        return Examined(corrected_noise=examined.corrected_noise)
    return examined
