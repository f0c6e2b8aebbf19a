"""Which classes the server's held-out data can hardly value, as members are told beforehand."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as

HELD_OUT_CLASSES_KEY = "held-out-classes"  # In a run's instructions, where there are such.
MOST_LABELS = 100_000  # Of a kind: a list of so many may go on.
_LARGEST_LABEL = 2**63 - 1  # Of a tensor.

_Label = Annotated[int, Field(ge=0, le=_LARGEST_LABEL)]


class _Told(BaseModel):
    """What is in a message."""

    model_config = ConfigDict(strict=True, extra="forbid")

    missing: list[_Label] = Field(max_length=MOST_LABELS)
    rare: list[_Label] = Field(max_length=MOST_LABELS)


@dataclass(frozen=True)
class HeldOutClasses:
    """The classes of which no held-out example counts, or only a few do.

    How many there are of these is not told.

    Attributes
    ----------
    missing, rare : tuple of int
        Labels, in order; none is in both.
    """

    missing: tuple[int, ...] = ()
    rare: tuple[int, ...] = ()

    @classmethod
    def of(cls, missing: Collection[int], rare: Collection[int]) -> HeldOutClasses:
        """Return them in order; a class that is in both is missing."""
        return cls(tuple(sorted(set(missing))), tuple(sorted(set(rare) - set(missing))))

    def union(self, other: HeldOutClasses) -> HeldOutClasses:
        """Return those that either of two sets lacks, or has only a few examples of."""
        return self.of((*self.missing, *other.missing), (*self.rare, *other.rare))

    def to_config(self) -> dict[str, str]:
        """Return what is added to a run's instructions; nothing where each class has enough.

        Of each kind it is the first 100,000 classes at most.
        """
        if not self.missing and not self.rare:
            return {}
        lists = {"missing": self.missing[:MOST_LABELS], "rare": self.rare[:MOST_LABELS]}
        return {HELD_OUT_CLASSES_KEY: json.dumps(lists)}


def read_held_out_classes(received: Mapping[str, object]) -> HeldOutClasses:
    """Return what a run's instructions say; nothing where they do not.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    text = received.get(HELD_OUT_CLASSES_KEY)
    if text is None:
        return HeldOutClasses()
    with refused_as(ConfigError, f"{HELD_OUT_CLASSES_KEY} cannot be read"):
        if not isinstance(text, str):
            raise TypeError(type(text).__name__)
        record = _Told.model_validate_json(text)
    return HeldOutClasses.of(record.missing, record.rare)
