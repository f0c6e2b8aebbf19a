"""What a run's provenance says of its held-out set, which was examined before the first round."""

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
    """What ``provenance.json`` says of an examination; of none, the correction alone."""

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
        """Refuse a share that no mix of classes has by the chances, which a replay recomputes."""
        if not self.corrected_by_class:
            return
        wrong = [1 - row[label] for label, row in enumerate(self.transitions)]
        if not wrong or not min(wrong) - 1e-9 <= self.corrected_noise <= max(wrong) + 1e-9:
            raise ValueError(
                f"corrected_noise = {self.corrected_noise}, which does not follow from transitions"
            )

    @property
    def is_corrected_within_an_interval(self) -> bool:
        """Whether the loss is corrected for a share that is known up to an interval alone."""
        if self.low is None or self.high is None or self.corrected_by_class:
            return False
        return self.corrected_noise > 0 and self.low < self.high

    @property
    def confused(self) -> float:
        """The share of labels that may be confused by class."""
        return confused_share(self.noise, self.by_class)

    @property
    def surely_uncorrected(self) -> float:
        """The least share of wrong labels that the loss does not allow for."""
        return max((self.low or 0.0) - self.corrected_noise, 0.0)

    @property
    def possibly_uncorrected(self) -> float:
        """The largest one; labels that may be confused by class count, too."""
        most = max(self.high or 0.0, self.confused)
        return max(most - self.corrected_noise, 0.0)


def read_examined(provenance: Mapping[str, Any]) -> Examined:
    """Return what a run's provenance says of the held-out set that it pays by.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    key = examined_key(provenance)
    record = provenance.get(key, {})
    try:
        examined = TypeAdapter(Examined).validate_python(record)
    except ValidationError as error:
        raise ConfigError(f"provenance.json: {key}: {first_error(error)}") from error
    if is_secret(provenance) and key != PAYING_KEY:
        # An earlier version, which examined the validation split alone, and corrected both alike.
        return Examined(corrected_noise=examined.corrected_noise)
    return examined
