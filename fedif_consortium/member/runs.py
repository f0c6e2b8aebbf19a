"""Which runs a member takes part in, what their run config may say, and how often it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Self

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, model_validator

from fedif_consortium.evidence.attempts import RUN_NAME
from fedif_flower.errors import ConfigError, RefusedByMemberError, require
from fedif_flower.foreign import refused_as
from fedif_flower.messages.text import printable
from fedif_flower.settings import AUTO, Scalar, Settings, setting
from fedif_flower.storage import make_folder, write_atomically

TRAIN, EVALUATE = "train", "evaluate"
MORE_QUERIES = 10  # Than rounds: who a node is, whether it can take part, its page.
_DAY = "a date, such as 2026-01-31"


class Range(BaseModel):
    """Numbers that a member accepts for a run-config key, both ends included."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    least: float = -math.inf
    most: float = math.inf

    @model_validator(mode="after")
    def _has_a_number(self) -> Self:
        if not self.least <= self.most:
            raise ValueError(f"no number is at least {self.least:g} and at most {self.most:g}")
        return self

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
        0,
        "Rounds, that is, messages of the type `train`, of all runs in a day; as many of the type "
        f"`evaluate`, and {MORE_QUERIES} more of any other, which bring answers too; 0: any.",
        ge=0,
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

    @model_validator(mode="after")
    def _has_a_day(self) -> Self:
        if self.first_day and self.last_day and self.last_day < self.first_day:
            require(False, "last_day", self.last_day, f"first-day = {self.first_day} or later")
        return self

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
        for key in sorted(self.config.keys() - config.keys()):
            value = _default(key)  # Of a key of this project; others' are nobody's here.
            # A server decides what else is automatic, and each message says what it decided.
            is_open = value == AUTO and key != RUN_NAME
            if value is not None and not is_open:
                accepted = self.config[key]
                _require(accepts(accepted, value), f"run config {key}", value, accepted)
        for key, value in config.items():
            accepted = self.config.get(key, "the app's own value only")
            is_own = self.unknown_keys or value == own.get(key)
            fits = accepts(accepted, value) if key in self.config else is_own
            _require(fits, f"run config {key}", value, accepted)

    def check_terms(self, terms: Mapping[str, Scalar], config: Mapping[str, Scalar]) -> None:
        """Raise RefusedByMemberError unless a message keeps what the run was admitted for.

        A run config is what the operator says once; a member answers messages.

        Parameters
        ----------
        terms : mapping of str to bool, int, float or str
            By run-config key, what the message that is to be answered says.
        config : mapping of str to bool, int, float or str
            The run config that was admitted.
        """
        for key, value in terms.items():
            if key in config:
                _require(value == config[key], f"the message says {key}", value, config[key])
            if key in self.config:
                accepted = self.config[key]
                _require(accepts(accepted, value), f"the message says {key}", value, accepted)

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
                accepted = self.config[key]
            elif self.unknown_keys:
                continue
            else:
                default = _default(key)
                own = accepted = ("" if default is None else default) if own is None else own
            fits = own == AUTO or accepts(accepted, value) or _is_own_task(key, value)
            _require(fits, f"the message says {key}", value, accepted)


def _require(fits: bool, key: str, value: object, accepted: Accepted) -> None:
    if not fits:
        words = " or ".join(map(repr, accepted)) if isinstance(accepted, list) else accepted
        raise RefusedByMemberError(f"{key} = {value!r}; this member accepts {words}")


# Both import where they are called: they need PyTorch, and a guard seldom needs them.
def _default(key: str) -> Scalar | None:
    """Return what a run has of a key that its app's own run config leaves out; ``None``: nothing.

    Of this project's apps, that is: those of others have no such keys.
    """
    from fedif_consortium.parts import server_parts
    from fedif_flower.messages.client_config import ClientConfig
    from fedif_flower.run.config import RunConfig

    config = RunConfig.from_run_config(RunConfig.defaults(), server_parts())
    return {**config.to_mapping(), **RunConfig.defaults(), **ClientConfig.defaults()}.get(key)


def _is_own_task(key: str, value: object) -> bool:
    """Return whether a message names the task that the approved app itself brings along."""
    if key != "task":
        return False
    from fedif_flower.tasks.config import OWN

    return str(value).startswith(OWN)


def is_round(kind: str) -> bool:
    """Return whether a message of a type begins a round: ``train``, and ``train.`` with a name."""
    return kind.partition(".")[0] == TRAIN


class _Counts(BaseModel, strict=True):
    """What was answered on a day."""

    day: date = date.min
    rounds: int = 0
    evaluations: int = 0
    queries: int = 0
    messages: int = 0


class RoundCounts:
    """Counts a day's rounds and messages in a file, so that a restart does not begin anew.

    Parameters
    ----------
    state : Path
        The folder of the policy's state.
    rules : RunRules
        How many there may be.

    Raises
    ------
    ConfigError
        If there is a file that is not what this class wrote.
    """

    def __init__(self, state: Path, rules: RunRules) -> None:
        self._path, self._rules = state / "round-counts.json", rules
        self._counts = _Counts()
        with refused_as(ConfigError, f"{self._path}; without it counts begin at 0"):
            if self._path.exists():
                self._counts = _Counts.model_validate_json(self._path.read_bytes())

    def count(self, kind: str, today: date) -> None:
        """Count a message before it is answered.

        Parameters
        ----------
        kind : str
            Its type.
        today : date
            The day in UTC.

        Raises
        ------
        RefusedByMemberError
            If it is one too many, or on a day on which the member does not answer.
        StorageError
            If the count cannot be written; then the message must not be answered.
        """
        rules = self._rules
        if rules.first_day and today < rules.first_day:
            raise RefusedByMemberError(f"this member takes part from {rules.first_day} on")
        if rules.last_day and today > rules.last_day:
            raise RefusedByMemberError(f"this member took part until {rules.last_day}")
        before = self._counts if self._counts.day == today else _Counts()
        is_evaluation = kind.partition(".")[0] == EVALUATE
        found = _Counts(
            day=today,
            rounds=before.rounds + is_round(kind),
            evaluations=before.evaluations + is_evaluation,
            queries=before.queries + (not is_round(kind) and not is_evaluation),
            messages=before.messages + 1,
        )
        rounds = rules.most_rounds_a_day
        queries = rounds + MORE_QUERIES if rounds else 0
        for count, counted, most, what in (
            (found.rounds, before.rounds, rounds, "rounds"),
            (found.evaluations, before.evaluations, rounds, "evaluations"),
            (found.queries, before.queries, queries, "queries"),
            (found.messages, before.messages, rules.most_messages_a_day, "messages"),
        ):
            if count > counted and 0 < most < count:
                raise RefusedByMemberError(f"this member takes part in at most {most} {what} a day")
        make_folder(self._path.parent)
        write_atomically(self._path, found.model_dump_json() + "\n")
        self._counts = found
