r"""The run that members agreed to, and the number of the present attempt at it.

Each start of a run is an attempt, whether it goes on from a checkpoint or begins anew. All attempts
at runs of one name are numbered, and chained by hashes:

.. math:: a_n = H(3 \,\|\, a_{n-1} \,\|\, \text{name}, n, \text{run id}, \text{run config}),
          \qquad a_0 = H(\text{empty})

with H = SHA-256. Who knows :math:`a_n` sees whether an earlier attempt was left out, added or
changed.
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
from fedif_flower.storage import (
    append_line,
    content_key,
    cut_torn_line,
    exclusive_lock,
    make_folder,
)

ATTEMPTS_KEY = "attempts"  # A key of a run's instructions to members, and of provenance.json.
LEDGER = "attempts.jsonl"  # A file in the output-dir.
MOST_ATTEMPTS = 1000  # At runs of one name.
NO_ATTEMPTS = hashlib.sha256().digest()  # a_0: the chain's end before the first attempt.
RUN_NAME = "run-name"
AUTO_NAME = "auto-"  # The prefix of automatic names: those of runs whose run config has no name.
# These settings say how an attempt begins, not what the run is. So no hash includes them.
HOW_IT_BEGINS = ("resume", "overwrite")


def _from_hex(value: object) -> object:
    if not isinstance(value, str):
        return value
    return bytes.fromhex(value)


Hex = Annotated[bytes, BeforeValidator(_from_hex), PlainSerializer(bytes.hex)]
_RunId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class AgreedRun(BaseModel):
    """The run and the attempt to which a head or a signature belongs.

    Attributes
    ----------
    name : str
        The run's name. It is empty where attempts are not counted, as in a simulation.
    attempt : int
        The attempt's number, from 1; 0 where attempts are not counted.
    config : bytes
        The SHA-256 of the run config.
    earlier : bytes
        The end of the chain of attempts before this one: a_(n-1).
    """

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(max_length=300)] = ""
    attempt: Annotated[int, Field(ge=0, le=MOST_ATTEMPTS)] = 0
    config: Hex = b""
    earlier: Hex = b""

    def end(self, run: str) -> bytes:
        """Return the end of the chain of attempts after this one, a_n; ``run`` is the run's id."""
        attempt = json.dumps([self.name, self.attempt, run, self.config.hex()])
        return hashlib.sha256(b"\x03" + self.earlier + attempt.encode()).digest()

    def terms(self) -> dict[str, Any]:
        """Return the fields of :class:`AgreedRun`, without the fields that a subclass adds."""
        return {name: getattr(self, name) for name in AgreedRun.model_fields}


NOT_COUNTED = AgreedRun()  # Stands for a run whose attempts are not counted.


class Attempt(BaseModel):
    """One start of a run: the run's id, and the hash of its run config in hex.

    A run that goes on from a checkpoint keeps its id.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    run: _RunId
    config: Sha256


class Attempts(BaseModel):
    """All attempts at a run so far, in their order.

    Attributes
    ----------
    name : str
        The run's name.
    attempts : tuple of Attempt
        At least one. The last one is the present attempt.
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
        """The present attempt."""
        return self.attempts[-1]

    def agreed(self, number: int) -> AgreedRun:
        """Return what signatures in attempt ``number`` say of the run.

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
        """Return the end of the chain of attempts after attempt ``number``.

        Raises
        ------
        EvidenceError
            If there is no such attempt.
        """
        return self.agreed(number).end(self.attempts[number - 1].run)


class SeenAttempt(NamedTuple):
    """An attempt that a member has evidence of: number, the run's id, the chain's end after it."""

    number: int
    run: str
    end: bytes


def config_hash(run_config: Mapping[str, Scalar]) -> str:
    """Return the SHA-256 in hex of a run config without :data:`HOW_IT_BEGINS`.

    Server and members compute the same hash, since Flower gives both the same run config.
    """
    counted = {key: value for key, value in run_config.items() if key not in HOW_IT_BEGINS}
    return content_key(counted)


def agreed_name(run_config: Mapping[str, Scalar]) -> str:
    """Return a run's name, which everybody who knows its run config can tell.

    If the run config has no name, the name follows from the config's hash. Then a changed setting
    gives another name.
    """
    name = str(run_config.get(RUN_NAME, AUTO))
    if name == AUTO:
        return automatic_name(config_hash(run_config))
    return name


def automatic_name(config: str) -> str:
    """Return the name of a run whose run config has none; ``config`` is the config's hash in hex.

    If such a run goes on with a changed config, it keeps the name that follows from the first one.
    """
    return f"{AUTO_NAME}{config[:16]}"


def read_attempts(provenance: Mapping[str, Any]) -> Attempts | None:
    """Return the attempts that ``provenance.json`` declares; ``None`` if they are not counted.

    Raises
    ------
    EvidenceError
        If the declaration is malformed.
    """
    declared = provenance.get(ATTEMPTS_KEY)
    if declared is None:
        return None
    with refused_as(EvidenceError, "provenance.json names no attempts"):
        return Attempts.model_validate(declared)


def told_attempts(text: object) -> Attempts:
    """Return the attempts in a message's instruction ``attempts``, which has to be JSON.

    Raises
    ------
    EvidenceError
        If it is no text, or the text names no attempts.
    """
    if not isinstance(text, str):
        raise EvidenceError(
            "the message does not say which attempt at which run it is of; the server may have an "
            "older version of fedif-flower"
        )
    with refused_as(EvidenceError, "the message does not say which attempt it is of"):
        return Attempts.model_validate(parse_json(text))


def agreed_in(settings: Mapping[str, Any]) -> AgreedRun:
    """Return the present attempt by a message's settings; ``NOT_COUNTED`` if they name none.

    Raises
    ------
    EvidenceError
        If the settings name attempts in another form than a server does.
    """
    if ATTEMPTS_KEY not in settings:
        return NOT_COUNTED
    attempts = told_attempts(settings[ATTEMPTS_KEY])
    return attempts.agreed(attempts.number)


class Ledger:
    """The file ``attempts.jsonl`` of an ``output-dir``: one line for each attempt at any run.

    The file lies beside the runs' folders, so that it stays when a run begins anew.

    Parameters
    ----------
    output_dir : Path
        The folder with the runs' folders.
    """

    def __init__(self, output_dir: Path) -> None:
        self.path = output_dir / LEDGER

    def before(self, name: str) -> tuple[Attempt, ...]:
        """Return the attempts at the run ``name`` so far.

        Raises
        ------
        ConfigError
            If the file cannot be read, or one of its lines is no attempt.
        """
        if not self.path.exists():
            return ()
        attempts: list[Attempt] = []
        with refused_as(ConfigError, f"{self.path} cannot be read"):
            # A power cut may have torn the last line, so what follows the last newline is ignored.
            *lines, _ = read_whole(self.path).decode().split("\n")
        for number, line in enumerate(lines, start=1):
            with refused_as(ConfigError, f"{self.path}, line {number}, is no attempt"):
                entry = parse_json(line)
                attempt = Attempt.model_validate({"run": entry["run"], "config": entry["config"]})
                if entry["name"] == name:
                    attempts.append(attempt)
        return tuple(attempts)

    def add(self, attempts: Attempts) -> None:
        """Append the last attempt, and all earlier ones that the file lacks.

        Raises
        ------
        ConfigError
            If the file has other attempts at this run. For example, two runs of one name began at
            the same time: both would claim the same number, and members would know only one.
        StorageError
            If the file cannot be written; then no member may be asked to train.
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
    """Return all attempts at a run, with a new one at the end.

    Parameters
    ----------
    name : str
        The run's name.
    config : str
        The hash of its run config in hex.
    run : str
        The run's id; a run that goes on has the id of the attempt before.
    earlier : sequence of sequence of Attempt
        The earlier attempts, by the ledger and by the run's records. The longest list counts.

    Raises
    ------
    ConfigError
        If 1,000 attempts were made at runs of this name.
    """
    before = max(earlier, key=len, default=())
    if len(before) >= MOST_ATTEMPTS:
        raise ConfigError(
            f"run-name = {printable(name)!r}: {MOST_ATTEMPTS} attempts were made at it; allowed: "
            "another run-name"
        )
    return Attempts(name=name, attempts=(*before, Attempt(run=run, config=config)))
