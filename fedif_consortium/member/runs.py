"""Which runs a member takes part in, which settings they may have, and how often it answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Self

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

from fedif_flower.errors import ConfigError, RefusedByMemberError, require
from fedif_flower.foreign import refused_as
from fedif_flower.messages.text import printable
from fedif_flower.settings import AUTO, Scalar, Settings, setting, similar_words
from fedif_flower.storage import make_folder, write_atomically

TRAIN = "train"
EVALUATE = "evaluate"
# A day may have this many more queries than rounds: a run also asks who a node is and whether it
# can take part, and sends it its page of the statement.
MORE_QUERIES = 10
_DAY = "a date, such as 2026-01-31"
logger = logging.getLogger(__name__)


class Range(BaseModel):
    """A range of numbers that a member accepts for a run-config key, both ends included."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    least: float = -math.inf
    most: float = math.inf

    @model_validator(mode="after")
    def _has_a_number(self) -> Self:
        if not self.least <= self.most:
            raise ValueError(f"no number is at least {self.least:g} and at most {self.most:g}")
        return self

    def __str__(self) -> str:
        ends = []
        if math.isfinite(self.least):
            ends.append(f"at least {self.least:g}")
        if math.isfinite(self.most):
            ends.append(f"at most {self.most:g}")
        return " and ".join(ends)


_AppName = Annotated[str, StringConstraints(pattern=r"^.+/.+$")]
Accepted = Scalar | Annotated[list[Scalar], MinLen(1)] | Range


def accepts(accepted: Accepted, value: object) -> bool:
    """Return whether the policy accepts ``value`` for a run-config key.

    ``accepted`` is what the policy lists for the key: a value, a list of values, or a range.
    """
    if isinstance(accepted, Range):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return accepted.least <= value <= accepted.most
    if isinstance(accepted, list):
        return any(_is_same(value, choice) for choice in accepted)
    return _is_same(value, accepted)


def _is_number(accepted: Accepted) -> bool:
    """Return whether the policy accepts only numbers for a run-config key."""
    if isinstance(accepted, Range):
        return True
    choices = [accepted]
    if isinstance(accepted, list):
        choices = [*accepted]
    for choice in choices:
        if isinstance(choice, bool) or not isinstance(choice, int | float):
            return False
    return True


def _is_same(value: object, other: object) -> bool:
    """Return whether two values of a run config are equal.

    Unlike in Python, true is not 1, and NaN is NaN.
    """
    if isinstance(value, bool) != isinstance(other, bool):
        return False
    if isinstance(value, float) and isinstance(other, float) and math.isnan(other):
        return math.isnan(value)
    return value == other


class RunRules(Settings):
    """``[runs]``: which runs a member takes part in, and how often. Days begin and end in UTC."""

    names: list[_AppName] = setting(
        [],
        "Apps that it takes part in, as `publisher/name`; empty: any that `[apps]` lets run.",
        allowed='a list of names, each "publisher/name"',
    )
    first_day: date | None = setting(
        None, "The first day (UTC) on which it answers; without: no first.", allowed=_DAY
    )
    last_day: date | None = setting(
        None, "The last day (UTC) on which it answers; without: no last.", allowed=_DAY
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
        allowed="for each key, quoted where it has a dot, a value, a list of values, or a range "
        "{least = ..., most = ...} that holds a number",
    )

    @model_validator(mode="after")
    def _has_a_day(self) -> Self:
        if self.first_day and self.last_day and self.last_day < self.first_day:
            require(False, "last_day", str(self.last_day), f"first-day = {self.first_day} or later")
        return self

    def check_run(
        self, name: str, config: Mapping[str, Scalar], bundled: Mapping[str, Scalar]
    ) -> None:
        """Raise RefusedByMemberError unless the policy allows a run of an app.

        Parameters
        ----------
        name : str
            The app's ``publisher/name``, as its bundle says.
        config : mapping of str to bool, int, float or str
            The run config that the app will get.
        bundled : mapping of str to bool, int, float or str
            The run config in the app's bundle, without the operator's changes.
        """
        if self.names and name not in self.names:
            raise RefusedByMemberError(
                f"app {printable(name)} is none that this member takes part in: "
                f"names = {', '.join(self.names)}"
            )
        for key in sorted(self.config.keys() - config.keys()):
            default = _default(key)
            if default is None:
                _warn_of_nobodys_key(key, config)
                continue
            if default == AUTO and _is_told(key):
                continue  # The server decides the value; check_settings checks it in each message.
            accepted = self.config[key]
            _require(accepts(accepted, default), f"run config {key}", default, accepted)
        for key, value in config.items():
            if key in self.config:
                accepted = self.config[key]
                if value == AUTO and _is_number(accepted) and _is_told(key):
                    continue  # Likewise.
                _require(accepts(accepted, value), f"run config {key}", value, accepted)
            else:
                is_allowed = self.unknown_keys or _is_same(value, bundled.get(key))
                _require(is_allowed, f"run config {key}", value, "the app's own value only")

    def check_terms(self, terms: Mapping[str, Scalar], config: Mapping[str, Scalar]) -> None:
        """Raise RefusedByMemberError unless a message's terms are those of its run.

        The operator sends the run config once, but the app follows each message. So each message
        has to agree with run config and policy.

        Parameters
        ----------
        terms : mapping of str to bool, int, float or str
            What the message says, by run-config key.
        config : mapping of str to bool, int, float or str
            The run config with which the run was admitted.
        """
        for key, value in terms.items():
            if key in config:
                is_kept = _is_same(value, config[key])
                _require(is_kept, f"the message says {key}", value, config[key])
            if key in self.config:
                accepted = self.config[key]
                _require(accepts(accepted, value), f"the message says {key}", value, accepted)

    def check_settings(self, settings: Mapping[str, object], config: Mapping[str, Scalar]) -> None:
        """Raise RefusedByMemberError unless a message's settings fit policy and run config.

        A key that ``[runs.config]`` lists needs a value that is listed there. Another key needs
        the value of the run config, or its default if the run config lacks it. If that value is
        ``"auto"``, or the policy has ``unknown-keys``, the server decides.

        Parameters
        ----------
        settings : mapping of str to object
            The settings in the message, by run-config key. This project's app follows these.
        config : mapping of str to bool, int, float or str
            The run config with which the run was admitted.
        """
        for key, value in settings.items():
            accepted = self._accepted_for(key, config)
            if accepted is None:
                continue
            is_allowed = accepts(accepted, value) or _is_own_task(key, value)
            _require(is_allowed, f"the message says {key}", value, accepted)

    def _accepted_for(self, key: str, config: Mapping[str, Scalar]) -> Accepted | None:
        """Return what a message may say of a key; ``None`` if the server decides."""
        if key in self.config:
            return self.config[key]
        configured = config.get(key)
        if configured == AUTO:
            return None
        if self.unknown_keys:
            return None
        if configured is not None:
            return configured
        default = _default(key)
        if default is None:
            return ""  # No run has such a key, so only an empty value is accepted.
        if default == AUTO:
            return None
        return default


def _warn_of_nobodys_key(key: str, config: Mapping[str, Scalar]) -> None:
    """Warn that a line of the policy limits nothing in a run, which does not have its key.

    The key may belong to another app. Or it is misspelt, and the member relies on it.
    """
    hint = ""
    near = similar_words(key, config)
    if near:
        hint = f"; did you mean {' or '.join(map(printable, near))}?"
    logger.warning(
        "[runs.config] has %s, which is no key of this run: the line limits nothing in it%s",
        printable(key),
        hint,
    )


def _require(is_allowed: bool, key: str, value: object, accepted: Accepted) -> None:
    """Raise RefusedByMemberError unless allowed; the message says what the member accepts."""
    if is_allowed:
        return
    words = str(accepted)
    if isinstance(accepted, list):
        words = " or ".join(map(repr, accepted))
    raise RefusedByMemberError(f"{key} = {value!r}; this member accepts {words}")


# The next three functions import modules themselves: these load PyTorch, and a guard rarely needs
# them.
def _default(key: str) -> Scalar | None:
    """Return the default of a run-config key in this project; ``None`` if it has no such key."""
    from fedif_consortium.parts import server_parts
    from fedif_flower.messages.client_config import ClientConfig
    from fedif_flower.run.config import RunConfig

    config = RunConfig.from_run_config(RunConfig.defaults(), server_parts())
    defaults = {**config.to_mapping(), **RunConfig.defaults(), **ClientConfig.defaults()}
    return defaults.get(key)


def _is_told(key: str) -> bool:
    """Return whether each message of a run of this project says the value of a key."""
    from fedif_flower.messages.client_config import ClientConfig

    return key in ClientConfig.defaults()


def _is_own_task(key: str, value: object) -> bool:
    """Return whether a message's setting names the task that the approved app itself holds."""
    if key != "task":
        return False
    from fedif_flower.tasks.config import OWN

    return str(value).startswith(OWN)


def is_round(kind: str) -> bool:
    """Return whether a message of type ``kind`` begins a round: ``train``, or ``train.NAME``."""
    return kind.partition(".")[0] == TRAIN


class _Counts(BaseModel, strict=True):
    """How many messages were counted on a day, by type and in all."""

    day: date = date.min
    rounds: int = 0
    evaluations: int = 0
    queries: int = 0
    messages: int = 0


class RoundCounts:
    """Counts a day's rounds and messages in a file, so that a restart does not reset the counts.

    Parameters
    ----------
    state : Path
        The folder of the policy's state.
    rules : RunRules
        The limits.

    Raises
    ------
    ConfigError
        If the file is damaged.
    """

    def __init__(self, state: Path, rules: RunRules) -> None:
        self._path = state / "round-counts.json"
        self._rules = rules
        self._counts = _Counts()
        with refused_as(ConfigError, f"{self._path}; without it counts begin at 0"):
            if self._path.exists():
                self._counts = _Counts.model_validate_json(self._path.read_bytes())

    def count(self, kind: str, today: date) -> None:
        """Count a message before it is answered.

        Parameters
        ----------
        kind : str
            The message's type.
        today : date
            The day in UTC. A day before the last counted day counts as the last counted day.

        Raises
        ------
        RefusedByMemberError
            If a limit is exceeded, or the member does not answer on this day; then the message is
            not counted.
        StorageError
            If the count cannot be written; then the message must not be answered.
        """
        rules = self._rules
        if rules.first_day and today < rules.first_day:
            raise RefusedByMemberError(f"this member takes part from {rules.first_day} on")
        if rules.last_day and today > rules.last_day:
            raise RefusedByMemberError(f"this member took part until {rules.last_day}")
        counts = self._counts_on(today)
        clock = ""
        if counts.day > today:
            clock = f"; its clock went back from {counts.day}, whose count goes on"
        most_rounds = rules.most_rounds_a_day
        if is_round(kind):
            counts.rounds += 1
            _require_few(counts.rounds, most_rounds, "rounds", clock)
        elif kind.partition(".")[0] == EVALUATE:
            counts.evaluations += 1
            _require_few(counts.evaluations, most_rounds, "evaluations", clock)
        else:
            counts.queries += 1
            most_queries = 0  # No limit.
            if most_rounds:
                most_queries = most_rounds + MORE_QUERIES
            _require_few(counts.queries, most_queries, "queries", clock)
        counts.messages += 1
        _require_few(counts.messages, rules.most_messages_a_day, "messages", clock)
        make_folder(self._path.parent)
        write_atomically(self._path, counts.model_dump_json() + "\n")
        self._counts = counts

    def _counts_on(self, today: date) -> _Counts:
        """Return the counts of a day so far.

        If the clock went back, the counts of the later day go on. Otherwise the server could use
        the limits of both days twice.
        """
        if today > self._counts.day:
            return _Counts(day=today)
        return self._counts.model_copy()


def _require_few(count: int, most: int, kind: str, clock: str) -> None:
    """Raise RefusedByMemberError if a count of the day is above its limit ``most``; 0: no limit.

    The reason ends with ``clock``, which says whether the clock went back.
    """
    if 0 < most < count:
        raise RefusedByMemberError(f"this member takes part in at most {most} {kind} a day{clock}")
