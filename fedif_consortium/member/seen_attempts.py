"""A guard remembers which attempts and rounds a member has seen; the next ones have to follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
MOST_NAMES = 10_000  # The most runs, by name, that are remembered.


class _Seen(BaseModel, strict=True):
    """The last attempt at a run that the member has seen.

    Attributes
    ----------
    number : int
        The attempt's number, from 1.
    end : str
        The end of the chain of attempts after it, in hex.
    config : str
        The hash of its run config in hex; empty if it is not known.
    earlier : list of str
        The hashes of the other run configs of this run that the member has seen.
    server_round : int
        The last round of the attempt in which the member was asked to train; 0 if none is known.
    """

    number: Annotated[int, Field(ge=1)]
    end: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    config: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    earlier: list[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = []
    server_round: Annotated[int, Field(ge=0)] = 0

    @property
    def configs(self) -> Sequence[str]:
        """The hashes of all run configs of this run that the member has seen."""
        return (self.config, *self.earlier)

    def may_be_called(self, name: str) -> bool:
        """Return whether ``name`` is that of a run config which the member has seen in this run.

        A member that was away in the first attempt of a run without a name has not seen it.
        """
        return name in map(automatic_name, self.configs)


class _File(BaseModel, strict=True):
    """The content of the file: the last seen attempts by the runs' names."""

    runs: dict[str, _Seen] = {}


class SeenAttempts:
    """Remembers the last attempt at each run, and its last round, in a file that outlives restarts.

    Parameters
    ----------
    state : Path
        The folder of the policy's state.

    Raises
    ------
    ConfigError
        If the file is damaged.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        self._runs: dict[str, _Seen] = {}
        with refused_as(ConfigError, f"{self._path}; without it any attempt is the first one"):
            if self._path.exists():
                self._runs = _File.model_validate_json(self._path.read_bytes()).runs

    def check(self, settings: Mapping[str, object], config: Mapping[str, Scalar]) -> Attempts:
        """Return the attempts that a message names, its own attempt last.

        Parameters
        ----------
        settings : mapping of str to object
            The settings in the message.
        config : mapping of str to bool, int, float or str
            The run config that the policy admitted.

        Raises
        ------
        RefusedByMemberError
            If the message names no attempt, names one at another run than the run config's, or the
            attempt does not follow those that this member has seen.
        """
        try:
            attempts = told_attempts(settings.get(ATTEMPTS_KEY))
        except EvidenceError as error:
            raise RefusedByMemberError(str(error)) from error
        title = _title(attempts)
        if attempts.last.run != settings.get(RUN_ID_KEY):
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
            # The automatic name of a run follows from the first attempt's run config. Without this
            # check, a server could invent a first attempt each time, and so a name that is new. Or
            # it could do so once, and then begin the run under its true name, as if it were new.
            runs = self._runs
            if attempts.number == 1:
                runs = {name: run for name, run in runs.items() if not run.may_be_called(name)}
            if attempts.last.config in _configs_of(runs):
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
        """Remember an attempt, and a round of it, before the round's message is answered.

        Parameters
        ----------
        attempts : Attempts
            The attempts that :meth:`check` returned.
        server_round : int, optional
            The round in which the member is asked to train; ``None`` if the message is of no round.

        Raises
        ------
        RefusedByMemberError
            If the round does not come after the last one of this attempt, or 10,000 other runs are
            remembered.
        StorageError
            If the file cannot be written; then the message must not be answered.
        """
        end = attempts.end(attempts.number).hex()
        seen = self._runs.get(attempts.name)
        last_round = 0
        if seen is not None and seen.end == end:
            last_round = seen.server_round
        if server_round is not None:
            # Otherwise the server could do a round again until it likes the result, and the number
            # of attempts would not show it.
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


def _configs_of(runs: Mapping[str, _Seen]) -> set[str]:
    """Return the hashes of the run configs of all attempts at these runs that a member has seen."""
    configs: set[str] = set()
    for seen in runs.values():
        configs.update(seen.configs)
    return configs


def _configs_before(seen: _Seen | None, config: str) -> list[str]:
    """Return the hashes of the run configs that a run had before, without the present one."""
    if seen is None:
        return []
    return sorted({*seen.configs} - {config, ""})


def _title(attempts: Attempts) -> str:
    """Return words for the last of the attempts, for error messages."""
    return f"attempt {attempts.number} at run {printable(attempts.name, 80)!r}"


def _may_be_called_so(attempts: Attempts, config: Mapping[str, Scalar]) -> bool:
    """Return whether a run with this run config may have the name in ``attempts``.

    If the run config has a name, it has to be this one. Otherwise the name has to follow from the
    run config of the first attempt, so that the server cannot choose it. A later attempt keeps
    this name, also if a setting on which no result depends was changed since.
    """
    if config.get(RUN_NAME, AUTO) != AUTO:
        return attempts.name == agreed_name(config)
    first_config = attempts.attempts[0].config
    return attempts.name == automatic_name(first_config)
