r"""Which run was agreed on, and the how-manieth attempt at it this is.

Each start of a run is an attempt, whether it goes on from a checkpoint or begins anew. Attempts of
one name are numbered, and chained:

.. math:: a_n = H(3 \,\|\, a_{n-1} \,\|\, \text{name}, n, \text{run id}, \text{run config}),
          \qquad a_0 = H(\text{empty})

with SHA-256. Who knows :math:`a_n` sees whether an earlier attempt was left out, added or changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
)

from fedif_flower.errors import ConfigError, EvidenceError
from fedif_flower.foreign import parse_json, read_whole, refused_as
from fedif_flower.messages.text import printable
from fedif_flower.settings import AUTO, Scalar
from fedif_flower.storage import append_line, cut_torn_line, exclusive_lock, make_folder

ATTEMPTS_KEY = "attempts"  # In a run's instructions.
LEDGER = "attempts.jsonl"  # In an output-dir.
MOST_ATTEMPTS = 1000  # Of one name.
NO_ATTEMPTS = hashlib.sha256().digest()  # Before the first.
RUN_NAME = "run-name"
AUTO_NAME = "auto-"  # How the names of runs begin that have none of their own.
HOW_IT_BEGINS = ("resume", "overwrite")  # They say how an attempt begins, not what the run is.


def _from_hex(value: object) -> object:
    if not isinstance(value, str):
        return value
    return bytes.fromhex(value)


Hex = Annotated[bytes, BeforeValidator(_from_hex), PlainSerializer(bytes.hex)]
_RunId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class AgreedRun(BaseModel):
    """What heads and signatures say of the run that they are of.

    Attributes
    ----------
    name : str
        What the run is called; empty: attempts are not counted, as in a simulation.
    attempt : int
        The number of this attempt; 0: it has none.
    config : bytes
        The SHA-256 of the run config.
    earlier : bytes
        The end of the chain of the attempts before this one.
    """

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(max_length=300)] = ""
    attempt: Annotated[int, Field(ge=0, le=MOST_ATTEMPTS)] = 0
    config: Hex = b""
    earlier: Hex = b""

    def end(self, run: str) -> bytes:
        """Return the end of the chain of attempts with this one, whose run has this id."""
        attempt = json.dumps([self.name, self.attempt, run, self.config.hex()])
        return hashlib.sha256(b"\x03" + self.earlier + attempt.encode()).digest()

    def terms(self) -> dict[str, Any]:
        """Return name, attempt, config and earlier attempts alone, also of what is signed."""
        return {name: getattr(self, name) for name in AgreedRun.model_fields}


NOT_COUNTED = AgreedRun()


class Attempt(BaseModel):
    """One start of a run: its id, which a run that goes on keeps, and the hash of its config."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    run: _RunId
    config: _Sha256


class Attempts(BaseModel):
    """Every attempt at a run so far, the first one first.

    Attributes
    ----------
    name : str
        What the run is called.
    attempts : tuple of Attempt
        The last one is the attempt that this is about.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=300)]
    attempts: Annotated[tuple[Attempt, ...], Field(min_length=1, max_length=MOST_ATTEMPTS)]

    @property
    def number(self) -> int:
        """The number of the last attempt."""
        return len(self.attempts)

    @property
    def last(self) -> Attempt:
        """The attempt that this is about."""
        return self.attempts[-1]

    def agreed(self, number: int) -> AgreedRun:
        """Return what is signed in one of the attempts.

        Raises
        ------
        EvidenceError
            If there is no such attempt.
        """
        if not 1 <= number <= self.number:
            raise EvidenceError(f"attempt {number} of run {self.name!r} was not declared")
        earlier = NO_ATTEMPTS
        for place, attempt in enumerate(self.attempts[:number], start=1):
            agreed = AgreedRun(
                name=self.name,
                attempt=place,
                config=bytes.fromhex(attempt.config),
                earlier=earlier,
            )
            earlier = agreed.end(attempt.run)
        return agreed

    def end(self, number: int) -> bytes:
        """Return the end of the chain of the attempts up to one."""
        return self.agreed(number).end(self.attempts[number - 1].run)


class SeenAttempt(NamedTuple):
    """An attempt that a member has something of: its number, its run's id, the chain's end."""

    number: int
    run: str
    end: bytes


def config_hash(run_config: Mapping[str, Scalar]) -> str:
    """Return the SHA-256 of a run config as Flower gives it to the app, on both sides.

    ``resume`` and ``overwrite`` do not count: they say how an attempt begins.
    """
    counted = {key: value for key, value in run_config.items() if key not in HOW_IT_BEGINS}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def agreed_name(run_config: Mapping[str, Scalar]) -> str:
    """Return what a run is called by everybody who knows its run config.

    One without a name is called by the hash of its config: another name is another config.
    """
    name = str(run_config.get(RUN_NAME, AUTO))
    if name == AUTO:
        return automatic_name(config_hash(run_config))
    return name


def automatic_name(config: str) -> str:
    """Return what a run without a name is called, by the hash of its first config."""
    return f"{AUTO_NAME}{config[:16]}"


def read_attempts(provenance: Mapping[str, Any]) -> Attempts | None:
    """Return the attempts that a run's records declare; ``None``: they are not counted.

    Raises
    ------
    EvidenceError
        If what they declare are no attempts.
    """
    declared = provenance.get(ATTEMPTS_KEY)
    if declared is None:
        return None
    with refused_as(EvidenceError, "provenance.json names no attempts"):
        return Attempts.model_validate(declared)


def told_attempts(text: object) -> Attempts:
    """Return the attempts that a server tells a member of.

    Raises
    ------
    EvidenceError
        If it tells of none.
    """
    if not isinstance(text, str):
        raise EvidenceError("the message does not say which attempt at which run it is of")
    with refused_as(EvidenceError, "the message does not say which attempt it is of"):
        return Attempts.model_validate(parse_json(text))


def agreed_in(settings: Mapping[str, Any]) -> AgreedRun:
    """Return the attempt that a message's settings name, or that they name none.

    Raises
    ------
    EvidenceError
        If they name it otherwise than a server does.
    """
    if ATTEMPTS_KEY not in settings:
        return NOT_COUNTED
    attempts = told_attempts(settings[ATTEMPTS_KEY])
    return attempts.agreed(attempts.number)


class Ledger:
    """The attempts at all runs with one ``output-dir``: a line each, in ``attempts.jsonl``.

    It lies beside the runs' folders, so that no run that begins anew removes it.

    Parameters
    ----------
    output_dir : Path
        The folder.
    """

    def __init__(self, output_dir: Path) -> None:
        self.path = output_dir / LEDGER

    def before(self, name: str) -> tuple[Attempt, ...]:
        """Return the attempts at a run so far.

        Raises
        ------
        ConfigError
            Naming the line that is none.
        """
        if not self.path.exists():
            return ()
        attempts: list[Attempt] = []
        with refused_as(ConfigError, f"{self.path} cannot be read"):
            *lines, _ = read_whole(self.path).decode().split("\n")  # The last may be torn.
        for number, line in enumerate(lines, start=1):
            with refused_as(ConfigError, f"{self.path}, line {number}, is no attempt"):
                entry = parse_json(line)
                attempt = Attempt.model_validate({"run": entry["run"], "config": entry["config"]})
                if entry["name"] == name:
                    attempts.append(attempt)
        return tuple(attempts)

    def add(self, attempts: Attempts) -> None:
        """Write down the last attempt, and those before that are not there yet.

        Raises
        ------
        ConfigError
            If other attempts are there: two runs of one name began at once, say, and both would be
            the same attempt, of which nobody is told of the second.
        StorageError
            If it cannot be written; then nobody may be asked to train.
        """
        make_folder(self.path.parent)
        with exclusive_lock(self.path.with_name(".attempts.lock")):
            cut_torn_line(self.path)
            written = self.before(attempts.name)
            if attempts.attempts[: len(written)] != written:
                raise ConfigError(
                    f"{self.path} has other attempts at run {printable(attempts.name)!r} than the "
                    f"{attempts.number} that this run would be the last of: begin again, or under "
                    "another run-name"
                )
            for attempt in attempts.attempts[len(written) :]:
                entry = {"name": attempts.name, **attempt.model_dump()}
                append_line(self.path, json.dumps(entry))


def next_attempt(
    name: str, config: str, run: str, earlier: Sequence[Sequence[Attempt]]
) -> Attempts:
    """Return the attempts at a run with a new one.

    Parameters
    ----------
    name : str
        What the run is called.
    config : str
        The hash of its run config.
    run : str
        Its id; where it goes on, the id of the attempt before.
    earlier : sequence of sequence of Attempt
        What the ledger and the records of earlier attempts have: the longest counts.

    Raises
    ------
    ConfigError
        If there were too many.
    """
    before = max(earlier, key=len, default=())
    if len(before) >= MOST_ATTEMPTS:
        raise ConfigError(
            f"run-name = {printable(name)!r}: {MOST_ATTEMPTS} attempts were made at it; allowed: "
            "another run-name"
        )
    return Attempts(name=name, attempts=(*before, Attempt(run=run, config=config)))
