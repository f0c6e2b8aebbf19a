"""Which attempts at which runs, and rounds of them, a member has seen: the next has to follow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from fedif_consortium.evidence.attempts import (
    ATTEMPTS_KEY,
    RUN_NAME,
    Attempts,
    agreed_name,
    automatic_name,
    config_hash,
    told_attempts,
)
from fedif_flower.errors import ConfigError, EvidenceError, RefusedByMemberError
from fedif_flower.foreign import refused_as
from fedif_flower.messages.instructions import RUN_ID_KEY
from fedif_flower.messages.text import printable
from fedif_flower.settings import AUTO, Scalar
from fedif_flower.storage import make_folder, write_atomically

FILE = "attempts.json"
MOST_NAMES = 10_000  # Of runs.


class _Seen(BaseModel, strict=True):
    """The last attempt at a run: its number, the end of the chain of attempts, its run config.

    ``earlier`` are the run configs of the attempts before it that this member has seen.
    ``server_round`` is the last round of it in which the member was to train; 0: none is known.
    """

    number: Annotated[int, Field(ge=1)]
    end: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    config: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    earlier: list[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = []
    server_round: Annotated[int, Field(ge=0)] = 0


class _File(BaseModel, strict=True):
    """What is remembered, by the run's name."""

    runs: dict[str, _Seen] = {}


class SeenAttempts:
    """Remembers the last attempt at each run, and its last round, in a file, beyond a restart.

    Parameters
    ----------
    state : Path
        The folder of the policy's state.

    Raises
    ------
    ConfigError
        If there is a file that is not what this class wrote.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        self._runs: dict[str, _Seen] = {}
        with refused_as(ConfigError, f"{self._path}; without it any attempt is the first one"):
            if self._path.exists():
                self._runs = _File.model_validate_json(self._path.read_bytes()).runs

    def check(self, told: Mapping[str, object], config: Mapping[str, Scalar]) -> Attempts:
        """Return the attempt that a message is of.

        Parameters
        ----------
        told : mapping of str to object
            The settings in the message.
        config : mapping of str to bool, int, float or str
            The run config that the policy admitted.

        Raises
        ------
        RefusedByMemberError
            If it names none, another run than that of the run config, or one that does not follow
            those that this member has seen.
        """
        try:
            attempts = told_attempts(told.get(ATTEMPTS_KEY))
        except EvidenceError as error:
            raise RefusedByMemberError(str(error)) from error
        title = _title(attempts)
        if attempts.last.run != told.get(RUN_ID_KEY):
            raise RefusedByMemberError(f"{title} has another id than the message")
        if attempts.last.config != config_hash(config):
            raise RefusedByMemberError(f"{title} names another run config than this run has")
        if not _may_be_called_so(attempts, config):
            raise RefusedByMemberError(f"{title}: the run config calls the run otherwise")
        self._require_following(attempts)
        return attempts

    def _require_following(self, attempts: Attempts) -> None:
        """Raise RefusedByMemberError unless an attempt follows those that the member has seen."""
        title = _title(attempts)
        seen = self._runs.get(attempts.name)
        if seen is None:
            # Else the server could make up a first attempt, and with it a name, each time.
            if attempts.number > 1 and attempts.last.config in self._seen_configs():
                raise RefusedByMemberError(
                    f"{title} does not follow: this member has seen its run config in a run that "
                    "was called otherwise"
                )
            return
        if attempts.number < seen.number:
            raise RefusedByMemberError(
                f"{title} does not follow: this member has seen attempt {seen.number}"
            )
        if attempts.end(seen.number).hex() != seen.end:
            raise RefusedByMemberError(
                f"{title} does not follow: this member has seen another attempt {seen.number}, or "
                "was told of others before it"
            )

    def note(self, attempts: Attempts, server_round: int | None = None) -> None:
        """Remember an attempt, and a round of it, before a message of it is answered.

        Parameters
        ----------
        attempts : Attempts
            As :meth:`check` returned it.
        server_round : int, optional
            The round in which the member is to train; ``None``: the message is of none.

        Raises
        ------
        RefusedByMemberError
            If the round does not follow those of this attempt, or there is no room for another run.
        StorageError
            If it cannot be written; then the message must not be answered.
        """
        end = attempts.end(attempts.number).hex()
        seen = self._runs.get(attempts.name)
        last_round = 0
        if seen is not None and seen.end == end:
            last_round = seen.server_round
        if server_round is not None:
            # Else the server could do a round again until it likes it, and no attempt would show.
            if server_round <= last_round:
                raise RefusedByMemberError(
                    f"round {server_round} of {_title(attempts)} does not follow: this member was "
                    f"to train in round {last_round}"
                )
            last_round = server_round
        now = _Seen(
            number=attempts.number,
            end=end,
            config=attempts.last.config,
            earlier=_configs_before(seen, attempts.last.config),
            server_round=last_round,
        )
        if seen == now:
            return
        runs = {**self._runs, attempts.name: now}
        if len(runs) > MOST_NAMES:
            raise RefusedByMemberError(
                f"this member has seen {MOST_NAMES} runs, and remembers no more"
            )
        make_folder(self._path.parent)
        write_atomically(self._path, _File(runs=runs).model_dump_json() + "\n")
        self._runs = runs

    def _seen_configs(self) -> set[str]:
        """Return the hashes of the run configs of all attempts that this member has seen."""
        configs: set[str] = set()
        for seen in self._runs.values():
            configs.update((seen.config, *seen.earlier))
        return configs


def _configs_before(seen: _Seen | None, config: str) -> list[str]:
    """Return the run configs that a run has had before the one that it has now."""
    if seen is None:
        return []
    return sorted({*seen.earlier, seen.config} - {config, ""})


def _title(attempts: Attempts) -> str:
    """Return what an error calls an attempt."""
    return f"attempt {attempts.number} at run {printable(attempts.name, 80)!r}"


def _may_be_called_so(attempts: Attempts, config: Mapping[str, Scalar]) -> bool:
    """Return whether a run with this config may have the name that its attempts have.

    A run that the config does not name keeps the name of its first attempt, also where a setting
    that is no matter for its results was changed since. The first config makes that name: the
    server does not choose it.
    """
    if config.get(RUN_NAME, AUTO) != AUTO:
        return attempts.name == agreed_name(config)
    first_config = attempts.attempts[0].config
    return attempts.name == automatic_name(first_config)
