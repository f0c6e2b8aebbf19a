"""What a run left in its folder, read for a statement and checked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat, TypeAdapter, ValidationError

from fedif_consortium.evidence.signed import first_error
from fedif_consortium.statement.manifest import SALT, read_file
from fedif_consortium.statement.members_names import read_names
from fedif_consortium.statement.own_parts import OwnPart
from fedif_flower.attribution.table import (
    BLOCK_COLUMN,
    BLOCKS_KEY,
    CLASS_COLUMN,
    NOISE_ENDS,
    noise_block_column,
)
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.messages.screening import ReplyStatus
from fedif_flower.run.completeness import Completeness, completeness
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.record_files import Table
from fedif_flower.run.rows import Line, read_table
from fedif_flower.run.secret_validation import COMMITMENT, NONCE, commitment_of, salt_of

USUAL = ("length", "weight", "borrowed", "opposed")
# Of all members of a round: client id, contribution, credit.
StepFigures = frozenset[tuple[int, float, float]]
_Row = TypeVar("_Row")
_Line = TypeVar("_Line", "Part", "Reply")


@dataclass(frozen=True)
class RoundLoss:
    """A line of ``attribution_rounds.csv``, in nats; a loss that diverged is not finite."""

    round: int
    loss_before: float
    loss_after: float
    decrease: FiniteFloat
    attributed: FiniteFloat
    remainder: FiniteFloat


@dataclass(frozen=True)
class Part:
    """A line of ``attribution.csv``: what a client put into a round, in nats; by class and block.

    ``credited`` is what it is credited with, at most the contribution. ``length``, ``weight`` and
    ``borrowed`` say how its update compares with what is usual, ``opposed`` how far it is turned
    against another one. Masked rounds are not split by blocks. Where the share of wrong labels is
    known up to an interval alone, there are also contribution, credit and blocks at both of its
    ends, ``low`` and ``high``.
    """

    round: int
    partition_id: int
    client_id: int
    contribution: FiniteFloat
    by_class: tuple[FiniteFloat, ...]
    credited: FiniteFloat
    length: FiniteFloat
    weight: FiniteFloat
    borrowed: FiniteFloat
    opposed: FiniteFloat
    by_block: tuple[FiniteFloat, ...]
    contribution_noise_low: FiniteFloat | None = None
    credited_noise_low: FiniteFloat | None = None
    by_block_noise_low: tuple[FiniteFloat, ...] = ()
    contribution_noise_high: FiniteFloat | None = None
    credited_noise_high: FiniteFloat | None = None
    by_block_noise_high: tuple[FiniteFloat, ...] = ()

    def at_noise_end(self, end: str) -> Part | None:
        """Return the part at an end of the share of wrong labels, without classes, if it is known.

        ``end`` is ``"low"`` or ``"high"``.
        """
        contribution = getattr(self, f"contribution_noise_{end}")
        credited = getattr(self, f"credited_noise_{end}")
        if contribution is None or credited is None:
            return None
        by_block = getattr(self, f"by_block_noise_{end}")
        return replace(
            self, contribution=contribution, credited=credited, by_block=by_block, by_class=()
        )


@dataclass(frozen=True)
class Reply:
    """What a statement needs of a line of ``clients.csv``."""

    round: int
    partition_id: int
    client_id: int
    status: ReplyStatus
    weight_score: FiniteFloat | None = None
    num_examples: FiniteFloat | None = None
    rejection: str = ""
    asked_in: int | None = None


@dataclass(frozen=True)
class RunRecords:
    """The records of a complete run.

    Attributes
    ----------
    folder : RunFolder
        Where they lie.
    config, provenance : mapping
        Settings, of an app of its own those that are known; hashes of validation set and code.
    rounds : tuple of RoundLoss
        One for each round, in order.
    parts : tuple of Part
        One for each client and round with a contribution.
    replies : tuple of Reply
        One for each client and round that it was asked in.
    members : mapping of int to int
        Every member that was asked or contributed, in rounds that are left out too: partition by
        client id, in that order.
    names : mapping of int to str
        What members are called, by client id.
    lines : sequence of mapping
        How many members were there: lines of ``rounds.csv``.
    """

    folder: RunFolder
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    rounds: tuple[RoundLoss, ...]
    parts: tuple[Part, ...]
    replies: tuple[Reply, ...]
    members: Mapping[int, int]
    names: Mapping[int, str]
    lines: list[Line]

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

    def known_ids(self) -> set[int]:
        """Return the client ids of all that the run knows, those that were never asked included.

        Simulated clients go by their partitions, and there are as many as the run has clients.
        """
        known = {*self.members, *read_names(self.folder.names.path)}
        known |= {int(line["client_id"]) for line in _lines(self.folder.attendance)}
        if all(client_id == partition for client_id, partition in self.members.items()):
            known |= set(range(self.config.get("num-clients", 0)))
        return known

    def completeness(self) -> Completeness:
        """Return whether what was asked for in these rounds came."""
        replies = map(vars, self.replies)
        attendance = _lines(self.folder.attendance)
        return completeness(self.lines, replies, attendance, self.names, self.config)

    @property
    def decrease(self) -> float:
        """By how much the loss fell in these rounds."""
        return math.fsum(row.decrease for row in self.rounds)

    @property
    def remainder(self) -> float:
        """How much of that is nobody's."""
        return math.fsum(row.remainder for row in self.rounds)

    @property
    def block_weights(self) -> list[float]:
        """Each block's part of the held-out examples; empty: contributions are not split."""
        is_split = all(part.by_block for part in self.parts)
        weights: list[float] | None = self.provenance.get(BLOCKS_KEY)
        if not is_split or not weights:
            return []
        return weights

    @property
    def own_parts(self) -> dict[int, OwnPart]:
        """What each member's updates have of their own."""
        own_parts: dict[int, OwnPart] = {}
        for line in _lines(self.folder.own_parts):
            cells = dict(line)
            client_id = cells.pop("client_id")
            rounds = cells.pop("rounds")
            squares = cells.pop("squares", 0.0)  # Earlier versions kept none.
            sums = list(cells.values())  # Whatever their number is: the columns that are left.
            own_parts[client_id] = OwnPart(rounds, squares, sums)
        return own_parts

    @cached_property
    def signed(self) -> set[tuple[int, int]]:
        """Round and client id of the replies that were signed."""
        return {(row["round"], row["client_id"]) for row in _lines(self.folder.signatures)}

    @cached_property
    def parts_of(self) -> Mapping[int, list[Part]]:
        """Each member's parts, by client id."""
        return by_member(self.parts)

    @cached_property
    def taken_back(self) -> Mapping[int, int]:
        """The rounds whose steps were taken back, by the round that did it.

        There all contributions and credits to the step are with the other sign.
        """
        parts_of = defaultdict[int, list[Part]](list)
        for part in self.parts:
            parts_of[part.round].append(part)
        last_round_with: dict[StepFigures, int] = {}
        taken_back = {}
        for number, parts in sorted(parts_of.items()):
            if not any(part.contribution for part in parts):
                continue
            figures = frozenset(
                (part.client_id, part.contribution, part.credited) for part in parts
            )
            # A round that undoes a step has the step's figures with the other sign.
            figures_of_undone = _negated(figures)
            if figures_of_undone in last_round_with:
                taken_back[number] = last_round_with.pop(figures_of_undone)
            else:
                last_round_with[figures] = number
        return taken_back

    @cached_property
    def by_round(self) -> NDArray[np.float64]:
        """What members contributed to each round, and are credited with, ``[2, T, n]``."""
        columns = {client_id: i for i, client_id in enumerate(self.members)}
        rows = {row.round: t for t, row in enumerate(self.rounds)}
        sums = np.zeros((2, len(rows), len(columns)))
        for part in self.parts:
            place = (rows[part.round], columns[part.client_id])
            sums[0][place] += part.contribution
            sums[1][place] += part.credited
        return sums

    def at_noise_ends(self) -> list[RunRecords]:
        """Return the records at the lowest and the highest share of wrong labels.

        What each contributed, is credited with, and that by block is what it would be there.
        Nothing where that is not known of all parts.
        """
        ends = []
        for end in NOISE_ENDS:
            parts = [part.at_noise_end(end) for part in self.parts]
            known_parts = tuple(part for part in parts if part is not None)
            if len(known_parts) < len(parts) or not parts:
                return []
            ends.append(replace(self, parts=known_parts))
        return ends

    def without(self, rounds: Collection[int]) -> RunRecords:
        """Return the records without what some rounds contributed; replies stay."""
        return replace(
            self,
            rounds=tuple(row for row in self.rounds if row.round not in rounds),
            parts=tuple(part for part in self.parts if part.round not in rounds),
        )


def _negated(figures: StepFigures) -> StepFigures:
    """Return a step's figures with the other sign."""
    return frozenset((client_id, -gave, -credited) for client_id, gave, credited in figures)


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
    _require_complete(folder)
    rounds = _parse(folder.attributed_rounds, RoundLoss)
    replies = _parse(folder.clients, Reply)
    lists = {"by_class": CLASS_COLUMN, "by_block": BLOCK_COLUMN}
    for end in NOISE_ENDS:
        lists[f"by_block_noise_{end}"] = noise_block_column(end)
    parts = _parse(folder.attribution, Part, lists)
    if not rounds or [row.round for row in rounds] != list(range(1, len(rounds) + 1)):
        raise ConfigError(f"{folder.attributed_rounds.path}: its rounds are not 1, 2, 3 ...")
    # Receipts have one line for a client in a round.
    if len({(part.round, part.client_id) for part in parts}) < len(parts):
        raise ConfigError(f"{folder.attribution.path}: a client is there twice in a round")
    members = _members(parts, replies)
    if not members:
        raise ConfigError(f"{folder.clients.path}: nobody was asked in this run")
    if names is None:
        names = read_names(folder.names.path)
    return RunRecords(
        folder=folder,
        config=folder.settings(),
        provenance=folder.provenance.read(),
        rounds=rounds,
        parts=parts,
        replies=replies,
        members=members,
        names=names,
        lines=_lines(folder.rounds),
    )


def _require_complete(folder: RunFolder) -> None:
    """Raise ConfigError, naming the file, unless a run came to its end and was attributed."""
    for file in (folder.summary, folder.attribution, folder.attributed_rounds, folder.clients):
        if not file.path.is_file():
            raise ConfigError(
                f"{str(file.path)!r} is missing: it takes a run that came to its end with "
                "attribution = 'simpson', or in an app of its own with PathAttribution beside "
                "RunWriter"
            )


def _members(parts: Iterable[Part], replies: Iterable[Reply]) -> dict[int, int]:
    """Return members' partitions by client id, in the order of the partitions."""
    partitions = {part.client_id: part.partition_id for part in parts}
    partitions |= {reply.client_id: reply.partition_id for reply in replies}
    in_order = sorted(partitions, key=lambda client_id: (partitions[client_id], client_id))
    return {client_id: partitions[client_id] for client_id in in_order}


def _parse(
    table: Table, kind: type[_Row], lists: Mapping[str, str] = MappingProxyType({})
) -> tuple[_Row, ...]:
    """Return every line of a table as an object of a kind.

    ``lists`` are its attributes that several columns make up, and how the columns' names begin.
    """
    rows: list[dict[str, Any]] = []
    for line in table.read():
        row: dict[str, Any] = {column: value for column, value in line.items() if value}
        for name, start in lists.items():
            columns = [column for column in row if str(column).startswith(start)]
            row[name] = [row[column] for column in columns]
        rows.append(row)
    try:
        return TypeAdapter(tuple[kind, ...]).validate_python(rows)  # type: ignore[valid-type]
    except ValidationError as error:
        index, _, wrong = first_error(error).partition(".")
        raise ConfigError(f"{table.path}, line {int(index) + 2}: {wrong}") from error


def _lines(table: Table) -> list[Line]:
    content = read_table(table.path, more=True)
    # Others may be missing: columns were added from version to version.
    first = table.columns[0]
    if content.num_rows and first not in content.column_names:
        raise ConfigError(f"{table.path} has no column {first!r}")
    return list(content.to_pylist())


def by_member(lines: Iterable[_Line]) -> Mapping[int, list[_Line]]:
    """Return each member's lines, by client id."""
    lines_of = defaultdict[int, list[_Line]](list)
    for line in lines:
        lines_of[line.client_id].append(line)
    return lines_of
