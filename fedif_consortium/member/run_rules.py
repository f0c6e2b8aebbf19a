"""Which runs a member takes part in, and what their run config may say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from typing import Annotated

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict

from fedif_flower.errors import RefusedByMemberError
from fedif_flower.messages.text import printable
from fedif_flower.settings import AUTO, Scalar, Settings, setting

_DAY = "a date, such as 2026-01-31"


class Range(BaseModel):
    """Numbers that a member accepts for a run-config key, both ends included."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    least: float = -math.inf
    most: float = math.inf

    def __str__(self) -> str:
        ends = [("at least", self.least), ("at most", self.most)]
        return " and ".join(f"{words} {end:g}" for words, end in ends if math.isfinite(end))


Accepted = Scalar | Annotated[list[Scalar], MinLen(1)] | Range


def accepts(accepted: Accepted, value: object) -> bool:
    """Return whether a run-config key may have a value."""
    if isinstance(accepted, Range):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return accepted.least <= value <= accepted.most
    # True == 1 in Python, but not in a run config.
    values = accepted if isinstance(accepted, list) else [accepted]
    return any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in values)


def _words(accepted: Accepted) -> str:
    return " or ".join(map(repr, accepted)) if isinstance(accepted, list) else str(accepted)


class RunRules(Settings):
    """``[runs]``: which runs a member takes part in, and how often. Days are days in UTC."""

    names: list[str] = setting(
        [],
        "Apps that it takes part in, as `publisher/name`; empty: any that `[apps]` lets run.",
        allowed="a list of strings",
    )
    first_day: date | None = setting(
        None, "The first day on which it answers; without: no first.", allowed=_DAY
    )
    last_day: date | None = setting(
        None, "The last day on which it answers; without: no last.", allowed=_DAY
    )
    most_rounds_a_day: int = setting(
        0, "Rounds, that is, messages of the type `train`, of all runs in a day; 0: any.", ge=0
    )
    most_messages_a_day: int = setting(
        0, "Messages of any type, of all runs, in a day; 0: any.", ge=0
    )
    unknown_keys: bool = setting(
        False,
        "Whether a run may change the app's own value of a key that `[runs.config]` does not list.",
    )

    config: dict[str, Accepted] = setting(
        {},
        "The section `[runs.config]`: run-config keys with what they may be, whoever set them.",
        allowed="for each key a value, a list of values, or a range",
    )

    def check_run(self, name: str, config: Mapping[str, Scalar], own: Mapping[str, Scalar]) -> None:
        """Raise RefusedByMemberError unless a member takes part in such a run.

        Parameters
        ----------
        name : str
            The app's publisher and name, as its bundle says.
        config, own : mapping of str to bool, int, float or str
            The run config as the app will get it, and the app's own.
        """
        if self.names and name not in self.names:
            raise RefusedByMemberError(
                f"app {printable(name)} is none that this member takes part in: "
                f"names = {', '.join(self.names)}"
            )
        for key, value in config.items():
            if key in self.config:
                is_allowed, allowed = accepts(self.config[key], value), _words(self.config[key])
            else:
                is_allowed = self.unknown_keys or value == own[key]
                allowed = "the app's own value only"
            if not is_allowed:
                raise RefusedByMemberError(
                    f"run config {key} = {value!r}; this member accepts {allowed}"
                )

    def check_told(self, told: Mapping[str, object], config: Mapping[str, Scalar]) -> None:
        """Raise RefusedByMemberError unless a message tells the app what its run config says.

        Parameters
        ----------
        told : mapping of str to object
            The settings in the message, by run-config key: what this project's app goes by.
        config : mapping of str to bool, int, float or str
            The run config. Where it says ``"auto"``, the server decides. What ``[runs.config]``
            does not list is as here, or else the default.
        """
        for key, value in told.items():
            own = config.get(key)
            if key in self.config:
                allowed = self.config[key]
            elif self.unknown_keys:
                continue
            else:
                own = allowed = _default(key) if own is None else own
            if not (own == AUTO or accepts(allowed, value) or _is_own_task(key, value)):
                raise RefusedByMemberError(
                    f"the message says {key} = {value!r}; this member accepts {_words(allowed)}"
                )

    def check_day(self, today: date) -> None:
        """Raise RefusedByMemberError on a day on which a member does not answer."""
        if self.first_day and today < self.first_day:
            raise RefusedByMemberError(f"this member takes part from {self.first_day} on")
        if self.last_day and today > self.last_day:
            raise RefusedByMemberError(f"this member took part until {self.last_day}")


# Both import where they are called: they need PyTorch, and a guard seldom needs them.
def _default(key: str) -> Scalar:
    """Return what clients are told of a key that the app's own run config leaves out."""
    from fedif_flower.messages.client_config import ClientConfig

    return ClientConfig.defaults().get(key, "")


def _is_own_task(key: str, value: object) -> bool:
    """Return whether a message names the task that the approved app itself brings along."""
    if key != "task":
        return False
    from fedif_flower.tasks.config import OWN

    return str(value).startswith(OWN)
