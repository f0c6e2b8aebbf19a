"""What a run left in its folder, read for a statement and checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, TypeAdapter
from pydantic import ValidationError as Invalid

from fedif_consortium.evidence.signed import first_of
from fedif_consortium.statement.manifest import SALT, read_file
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.messages.screening import Status
from fedif_flower.run.completeness import Completeness, completeness
from fedif_flower.run.folder import BLOCK_COLUMN, BLOCKS_KEY, RunFolder, Table
from fedif_flower.run.rows import Line, read_table
from fedif_flower.run.secret_validation import COMMITMENT, NONCE, commitment_of, salt_of
from fedif_flower.strategies.scoring import Scoring

USUAL = ("length", "weight", "borrowed", "opposed")
_Row = TypeVar("_Row")
_Of = TypeVar("_Of", "Part", "Reply")
# What a cell may hold: -0.0 is 0.0; a loss that diverged is NaN; an empty cell is nothing.
_Finite = Annotated[float, Field(allow_inf_nan=False), AfterValidator(lambda v: v + 0.0)]
_Loss = Annotated[
    float,
    BeforeValidator(lambda text: text or "nan"),
    AfterValidator(lambda v: v if math.isfinite(v) else math.nan),
]
_Optional = BeforeValidator(lambda text: text or None)
_ROUNDS = ("round", "online", "accepted", "rejected", "failed", "round_failed")
_PRESENCE = {"round": pa.int64(), "partition_id": pa.int64(), "client_id": pa.uint64()}
_PRESENCE |= {"presence": pa.string(), "at": pa.string()}


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("allowed: printable characters")
    return text


@dataclass(frozen=True)
class RoundLoss:
    """A line of ``attribution_rounds.csv``, in nats; the losses are NaN where they diverged."""

    round: int
    loss_before: _Loss
    loss_after: _Loss
    decrease: _Finite
    attributed: _Finite
    remainder: _Finite


@dataclass(frozen=True)
class Part:
    """A line of ``attribution.csv``: what a client put into a round, in nats; by class and block.

    ``credited`` is what it is credited with, at most the contribution. ``length``, ``weight`` and
    ``borrowed`` say how its update compares with what is usual, ``opposed`` how far it is turned
    against another one.
    """

    round: int
    partition_id: int
    client_id: int
    contribution: _Finite
    by_class: tuple[_Finite, ...]
    credited: _Finite
    length: _Finite
    weight: _Finite
    borrowed: _Finite
    opposed: _Finite
    by_block: tuple[_Finite, ...]


@dataclass(frozen=True)
class Reply:
    """What a statement needs of a line of ``clients.csv``."""

    round: int
    partition_id: int
    client_id: int
    weight_score: Annotated[_Finite | None, _Optional]
    num_examples: Annotated[_Finite | None, _Optional]
    status: Status
    rejection: str
    asked_in: Annotated[int | None, _Optional]


@dataclass(frozen=True)
class Named:
    """A line of ``names.csv``: what the operator calls a member."""

    client_id: Annotated[int, Field(ge=0)]
    name: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=80),
        AfterValidator(_printable),
    ]


@dataclass(frozen=True)
class RunRecords:
    """The records of a complete run.

    Attributes
    ----------
    folder : RunFolder
        Where they lie.
    config, provenance : dict
        Settings; hashes of the validation set and the code.
    rounds : tuple of RoundLoss
        One for each round, in order.
    parts : tuple of Part
        One for each client and round with a contribution.
    replies : tuple of Reply
        One for each client and round that it was asked in.
    members : dict of int to int
        Every member that was asked or contributed, in rounds that are left out too: partition by
        client id, in that order.
    names : dict of int to str
        What members are called, by client id.
    scoring : Scoring, optional
        How weight scores came about, where that was recorded.
    masking : mapping, optional
        Who kept the masks, and the last hash of that keeper's log, if updates were masked.
    lines, attendance : sequence of mapping
        How many members were there, and who was not: lines of ``rounds.csv``, ``attendance.csv``.
    block_weights : tuple of float
        Each block's part of the held-out examples; empty: contributions are not split by them.
    own_parts : mapping
        Of each member its rounds and a sketch of what its updates have of their own, by client id.
    signed : frozenset of (int, int)
        Round and client id of the replies that were signed.
    """

    folder: RunFolder
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    rounds: tuple[RoundLoss, ...]
    parts: tuple[Part, ...]
    replies: tuple[Reply, ...]
    members: Mapping[int, int]
    names: Mapping[int, str]
    scoring: Scoring | None
    masking: Mapping[str, Any] | None
    signed: frozenset[tuple[int, int]]
    lines: Sequence[Line]
    attendance: Sequence[Line]
    block_weights: tuple[float, ...]
    own_parts: Mapping[int, tuple[int, tuple[float, ...]]]

    def salt(self) -> str:
        """Return the salt of secret data as its statement opens it, else the server's own.

        Empty: no data are secret.

        Raises
        ------
        StatementError
            If it is not the one that the run began with.
        """
        if COMMITMENT not in self.provenance:
            return ""
        if self.folder.statement.is_dir():
            salt = read_file(self.folder.statement, SALT).decode().strip()
        else:
            salt = salt_of(str(self.provenance[NONCE]))
        if commitment_of(salt) != self.provenance[COMMITMENT]:
            raise StatementError("the salt is not the one that the run committed to")
        return salt

    def judged(self) -> Completeness:
        """Return whether what was asked for in these rounds came."""
        replies = map(vars, self.replies)
        return completeness(self.lines, replies, self.attendance, self.names, self.config)

    @property
    def losses(self) -> list[float]:
        """The validation loss before the first round and after each, where it is finite."""
        all_of_them = [self.rounds[0].loss_before, *(row.loss_after for row in self.rounds)]
        return [loss for loss in all_of_them if math.isfinite(loss)] or [0.0]

    @cached_property
    def parts_of(self) -> dict[int, list[Part]]:
        """Each member's parts, by client id."""
        return _by_member(self.parts, self.members)

    @cached_property
    def replies_of(self) -> dict[int, list[Reply]]:
        """Each member's replies, by client id."""
        return _by_member(self.replies, self.members)

    def without(self, rounds: Collection[int]) -> RunRecords:
        """Return the records without what some rounds contributed; replies stay."""
        return replace(
            self,
            rounds=tuple(row for row in self.rounds if row.round not in rounds),
            parts=tuple(part for part in self.parts if part.round not in rounds),
        )

    def since(self, first_round: int) -> RunRecords:
        """Return the records without the rounds before one; nobody who was in those is left out.

        Raises
        ------
        ConfigError
            If there is no such round.
        """
        if first_round not in range(1, len(self.rounds) + 1):
            raise ConfigError(f"from-round = {first_round}; allowed: 1 to {len(self.rounds)}")
        return replace(
            self.without(range(first_round)),
            replies=tuple(reply for reply in self.replies if reply.round >= first_round),
            lines=[line for line in self.lines if line["round"] >= first_round],
        )


def read_run(run_dir: Path, names: Mapping[int, str] | None = None) -> RunRecords:
    """Read and check a run's records.

    Parameters
    ----------
    run_dir : Path
        A run's folder.
    names : mapping of int to str, optional
        Members' names by client id; default: those given at registration (``names.csv``).

    Raises
    ------
    ConfigError
        If the run is not complete, was run without attribution, or a line is not as it should be;
        the error names the file.
    """
    folder = RunFolder(run_dir)
    for file, why in (
        (folder.summary, "no complete run is there"),
        (folder.attribution, "run it with attribution = 'simpson'"),
        (folder.attributed_rounds, "run it with attribution = 'simpson'"),
        (folder.clients, "it was taken away"),
    ):
        if not file.path.is_file():
            raise ConfigError(f"{str(file.path)!r} is missing: {why}")
    rounds = _parse(folder.attributed_rounds, RoundLoss)
    parts = _parse(folder.attribution, Part)
    replies = _parse(folder.clients, Reply)
    if not rounds or [row.round for row in rounds] != list(range(1, len(rounds) + 1)):
        raise ConfigError(f"{folder.attributed_rounds.path}: its rounds are not 1, 2, 3 ...")
    held = {part.client_id: part.partition_id for part in parts}
    held |= {reply.client_id: reply.partition_id for reply in replies}
    places = {"round": pa.uint64(), "client_id": pa.uint64()}
    sketches = read_table(folder.own_parts.path, more=True).to_pylist()
    provenance, is_split = folder.provenance.read(), all(part.by_block for part in parts)
    return RunRecords(
        folder=folder,
        config=folder.config.read(),
        provenance=provenance,
        rounds=rounds,
        parts=parts,
        replies=replies,
        members=dict(sorted(held.items(), key=lambda item: (item[1], item[0]))),
        names=read_names(folder.names.path) if names is None else names,
        scoring=Scoring.from_record(folder.summary.read().get("scoring")),
        masking=folder.masking.read() if folder.masking.path.is_file() else None,
        signed=frozenset(
            tuple(row.values()) for row in read_table(folder.signatures.path, places).to_pylist()
        ),
        lines=read_table(folder.rounds.path, dict.fromkeys(_ROUNDS, pa.int64())).to_pylist(),
        attendance=read_table(folder.attendance.path, _PRESENCE).to_pylist(),
        block_weights=tuple(provenance.get(BLOCKS_KEY) or ()) if is_split else (),
        own_parts={
            client_id: (rounds, tuple(sketch))
            for client_id, rounds, *sketch in (row.values() for row in sketches)
        },
    )


def read_names(path: Path) -> dict[int, str]:
    """Read members' names: a CSV file with the columns ``client_id`` and ``name``.

    Raises
    ------
    ConfigError
        Naming the file and the line: an id that is no whole number or is there twice, a name that
        is empty, longer than 80 characters or not printable.
    """
    lines = _parse(Table(path, ("client_id", "name")), Named)
    names = {named.client_id: named.name for named in lines}
    if len(names) < len(lines):
        raise ConfigError(f"{path}: a client_id is there twice")
    return names


def _parse(table: Table, kind: type[_Row]) -> tuple[_Row, ...]:
    """Return every line of a table as one of a kind."""
    rows = [row | _split(row) for row in table.read()]
    try:
        return TypeAdapter(tuple[kind, ...]).validate_python(rows)  # type: ignore[valid-type]
    except Invalid as error:
        index, _, wrong = first_of(error).partition(".")
        raise ConfigError(f"{table.path}, line {int(index) + 2}: {wrong}") from error


def _split(row: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return what a line has by class and by block; masked rounds are not split: it is empty."""
    starts = {"by_class": "contribution_class_", "by_block": BLOCK_COLUMN}
    return {
        name: tuple(value for key, value in row.items() if value and str(key).startswith(start))
        for name, start in starts.items()
    }


def _by_member(lines: Sequence[_Of], members: Collection[int]) -> dict[int, list[_Of]]:
    found: dict[int, list[_Of]] = {client_id: [] for client_id in members}
    for line in lines:
        found[line.client_id].append(line)
    return found
