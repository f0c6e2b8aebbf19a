"""Which classes the server's held-out data hardly cover: members learn it before they train."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as

HELD_OUT_CLASSES_KEY = "held-out-classes"  # In a run's instructions, if a class has too few.
# Each list is cut off at this length: one that has it may be incomplete.
MOST_LABELS = 100_000
_LARGEST_LABEL = 2**63 - 1  # Labels are int64 in a tensor.

_Label = Annotated[int, Field(ge=0, le=_LARGEST_LABEL)]


class _Told(BaseModel):
    """The JSON object in a run's instructions."""

    model_config = ConfigDict(strict=True, extra="forbid")

    missing: list[_Label] = Field(max_length=MOST_LABELS)
    rare: list[_Label] = Field(max_length=MOST_LABELS)


@dataclass(frozen=True)
class HeldOutClasses:
    """The classes for which no held-out example counts (missing), or only a few (rare).

    Members do not learn how many held-out examples a class has.

    Attributes
    ----------
    missing, rare : tuple of int
        Labels in ascending order. No label is in both.
    """

    missing: tuple[int, ...] = ()
    rare: tuple[int, ...] = ()

    @classmethod
    def of(cls, missing: Collection[int], rare: Collection[int]) -> HeldOutClasses:
        """Sort the labels; a class that is in both collections counts as missing."""
        return cls(tuple(sorted(set(missing))), tuple(sorted(set(rare) - set(missing))))

    def union(self, other: HeldOutClasses) -> HeldOutClasses:
        """Return the classes that are missing or rare in either of two held-out sets."""
        return self.of((*self.missing, *other.missing), (*self.rare, *other.rare))

    def to_config(self) -> dict[str, str]:
        """Return what is added to a run's instructions; empty if every class has enough examples.

        Each list has at most its first 100,000 classes.
        """
        if not self.missing and not self.rare:
            return {}
        lists = {"missing": self.missing[:MOST_LABELS], "rare": self.rare[:MOST_LABELS]}
        return {HELD_OUT_CLASSES_KEY: json.dumps(lists)}


def read_held_out_classes(received: Mapping[str, object]) -> HeldOutClasses:
    """Return the classes that a run's instructions name; none if they name none.

    Raises
    ------
    ConfigError
        If the entry cannot be read.
    """
    text = received.get(HELD_OUT_CLASSES_KEY)
    if text is None:
        return HeldOutClasses()
    with refused_as(ConfigError, f"{HELD_OUT_CLASSES_KEY} cannot be read"):
        if not isinstance(text, str):
            raise TypeError(type(text).__name__)
        record = _Told.model_validate_json(text)
    return HeldOutClasses.of(record.missing, record.rare)
