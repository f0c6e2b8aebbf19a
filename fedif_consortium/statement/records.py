"""What a run left in its folder, read for a statement and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pyarrow as pa
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from fedif_consortium.evidence.cells import first_of
from fedif_flower.errors import ConfigError
from fedif_flower.messages.screening import Status
from fedif_flower.run.completeness import Completeness, completeness
from fedif_flower.run.folder import BLOCK_COLUMN, BLOCKS_KEY, JsonFile, RunFolder, Table
from fedif_flower.run.rows import Line, read_table
from fedif_flower.strategies.scoring import Scoring

_CLASS = "contribution_class_"
USUAL = ("length", "weight", "borrowed", "opposed")
_Row = TypeVar("_Row")
# What a cell may hold: -0.0 is 0.0; a loss that diverged is NaN; an empty cell is nothing.
_Finite = Annotated[float, Field(allow_inf_nan=False), AfterValidator(lambda v: v + 0.0)]
_Loss = Annotated[
    float,
    BeforeValidator(lambda text: text or "nan"),
    AfterValidator(lambda v: v if math.isfinite(v) else math.nan),
]
_Optional = BeforeValidator(lambda text: text or None)
_ROUNDS = dict.fromkeys(("round", "online", "accepted", "rejected", "failed"), pa.int64())
_PRESENCE = dict.fromkeys(("round", "partition_id"), pa.int64()) | {"client_id": pa.uint64()}
_PRESENCE |= dict.fromkeys(("presence", "at"), pa.string())


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
    by_block: tuple[_Finite, ...] = ()


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
    names : dict of int to str
        What members are called, by client id.
    scoring : Scoring, optional
        How weight scores came about, where that was recorded.
    earlier : dict of int to int
        Members of rounds that are left out: partition by client id.
    masking : mapping, optional
        Who kept the masks, and the last hash of that keeper's log, if updates were masked.
    lines, attendance : sequence of mapping
        How many members were there, and who was not: lines of ``rounds.csv``, ``attendance.csv``.
    completeness : Completeness
        Whether what the whole run asked for came.
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
    names: Mapping[int, str]
    scoring: Scoring | None = None
    earlier: Mapping[int, int] = field(default_factory=dict)
    masking: Mapping[str, Any] | None = None
    signed: frozenset[tuple[int, int]] = frozenset()
    lines: Sequence[Line] = ()
    attendance: Sequence[Line] = ()
    completeness: Completeness | None = None
    block_weights: tuple[float, ...] = ()
    own_parts: Mapping[int, tuple[int, tuple[float, ...]]] = field(default_factory=dict)

    def judged(self) -> Completeness:
        """Return whether what was asked for in these rounds came."""
        replies = map(vars, self.replies)
        return completeness(self.lines, replies, self.attendance, self.names, self.config)

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.folder.path.name

    @property
    def losses(self) -> list[float]:
        """The validation loss before the first round and after each, where it is finite."""
        all_of_them = [self.rounds[0].loss_before, *(row.loss_after for row in self.rounds)]
        return [loss for loss in all_of_them if math.isfinite(loss)] or [0.0]

    @cached_property
    def parts_of(self) -> dict[int, list[Part]]:
        """Each member's parts, by client id."""
        found: dict[int, list[Part]] = {client_id: [] for client_id in self.members}
        for part in self.parts:
            found[part.client_id].append(part)
        return found

    @cached_property
    def members(self) -> dict[int, int]:
        """Every member that was asked or contributed: partition by client id, in that order."""
        last = dict(self.earlier)
        last |= {part.client_id: part.partition_id for part in self.parts}
        last |= {reply.client_id: reply.partition_id for reply in self.replies}
        return dict(sorted(last.items(), key=lambda item: (item[1], item[0])))

    def without(self, rounds: Collection[int]) -> RunRecords:
        """Return the records without what some rounds contributed; replies stay."""
        if not rounds:
            return self
        return replace(
            self,
            rounds=tuple(row for row in self.rounds if row.round not in rounds),
            parts=tuple(part for part in self.parts if part.round not in rounds),
            earlier=self.members,
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
            self,
            rounds=self.rounds[first_round - 1 :],
            parts=tuple(part for part in self.parts if part.round >= first_round),
            replies=tuple(reply for reply in self.replies if reply.round >= first_round),
            lines=[line for line in self.lines if line["round"] >= first_round],
            earlier=self.members,
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
    if not run_dir.is_dir():
        raise ConfigError(f"{str(run_dir)!r} is no directory")
    folder = RunFolder(run_dir)
    summary = folder.summary
    if not summary.path.is_file():
        raise ConfigError(f"{str(run_dir)!r} holds no complete run: {summary.path.name} is missing")
    if not folder.attribution.path.is_file():
        raise ConfigError(
            f"{str(run_dir)!r} was run without attribution: run it with attribution = 'simpson'"
        )
    for file in (folder.config, folder.provenance, folder.clients, folder.attributed_rounds):
        if not file.path.is_file():
            raise ConfigError(f"{str(file.path)!r} is missing")
    if names is None:
        names = read_names(folder.names.path) if folder.names.path.is_file() else {}
    rounds = _parse(folder.attributed_rounds, RoundLoss)
    parts = _parse(folder.attribution, Part, _with_classes)
    replies = _parse(folder.clients, Reply)
    numbers = [row.round for row in rounds]
    if not rounds or numbers != list(range(1, len(rounds) + 1)):
        raise ConfigError(f"{folder.attributed_rounds.path}: its rounds are not 1, 2, 3 ...")
    # A second reply of a node is recorded too, as refused; a contribution is there once.
    if len({(part.round, part.client_id) for part in parts}) < len(parts):
        raise ConfigError(f"{folder.attribution.path}: a line is there twice")
    for table, of_rounds in (
        (folder.attribution, {part.round for part in parts}),
        (folder.clients, {reply.round for reply in replies}),
    ):
        if strange := of_rounds - set(numbers):
            raise ConfigError(f"{table.path}: this run has no round {min(strange)}")
    provenance = folder.provenance.read()
    places = dict.fromkeys(("round", "client_id"), pa.uint64())
    own_parts = {
        client_id: (rounds, tuple(sketch))
        for client_id, rounds, *sketch in (
            row.values() for row in read_table(folder.own_parts.path, more=True).to_pylist()
        )
    }
    records = RunRecords(
        folder=folder,
        config=folder.config.read(),
        provenance=provenance,
        block_weights=_weights(folder, provenance, parts),
        rounds=rounds,
        parts=parts,
        replies=replies,
        names=dict(names),
        scoring=_scoring(summary),
        masking=folder.masking.read() if folder.masking.path.is_file() else None,
        lines=read_table(folder.rounds.path, {**_ROUNDS, "round_failed": pa.int64()}).to_pylist(),
        own_parts=own_parts,
        attendance=read_table(folder.attendance.path, _PRESENCE).to_pylist(),
        signed=frozenset(
            (row["round"], row["client_id"])
            for row in read_table(folder.signatures.path, places).to_pylist()
        ),
    )
    return replace(records, completeness=records.judged())


def read_names(path: Path) -> dict[int, str]:
    """Read members' names: a CSV file with the columns ``client_id`` and ``name``.

    Raises
    ------
    ConfigError
        Naming the file and the line: an id that is no whole number or is there twice, a name that
        is empty, longer than 80 characters or not printable.
    """
    if not path.is_file():
        raise ConfigError(f"{str(path)!r} cannot be read: it is no file")
    names: dict[int, str] = {}
    for line, named in enumerate(_parse(Table(path, ("client_id", "name")), Named), start=2):
        if named.client_id in names:
            raise ConfigError(f"{path}, line {line}: client_id = {named.client_id} is there twice")
        names[named.client_id] = named.name
    return names


def _parse(
    table: Table,
    kind: type[_Row],
    prepared: Callable[[Mapping[str, str]], object] = lambda row: row,
) -> tuple[_Row, ...]:
    """Return every line of a table as one of a kind; ``prepared`` makes its values of the cells."""
    adapter, parsed = TypeAdapter(kind), []
    for line, row in enumerate(table.read(), start=2):
        try:
            if None in row or None in row.values():
                raise ValueError("it has another number of cells than the first line")
            parsed.append(adapter.validate_python(prepared(row)))
        except ValidationError as error:
            raise ConfigError(f"{table.path}, line {line}: {first_of(error)}") from error
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{table.path}, line {line}: {error!r}") from error
    return tuple(parsed)


def _with_classes(row: Mapping[str, str]) -> object:
    by_class = tuple(value for key, value in row.items() if key.startswith(_CLASS))
    # Masked rounds are not split: their cells are empty.
    by_block = tuple(value for key, value in row.items() if key.startswith(BLOCK_COLUMN) and value)
    return {**row, "by_class": by_class, "by_block": by_block}


def _weights(folder: RunFolder, provenance: Mapping[str, Any], parts: Sequence[Part]) -> Any:
    """Return the weights of blocks of held-out examples; none where a line is not split."""
    weights = provenance.get(BLOCKS_KEY) or []
    if not weights or any(not part.by_block for part in parts):
        return ()
    fits = isinstance(weights, list) and len(weights) > 1
    if not fits or not all(isinstance(w, float) and 0 < w < 1 for w in weights):
        raise ConfigError(f"{folder.provenance.path}: {BLOCKS_KEY} are no weights of blocks")
    if any(len(part.by_block) != len(weights) for part in parts):
        raise ConfigError(f"{folder.attribution.path}: a line has not {len(weights)} blocks")
    return tuple(weights)


def _scoring(summary: JsonFile) -> Scoring | None:
    try:
        return Scoring.from_record(summary.read().get("scoring"))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{summary.path}: scoring: {error}") from error
