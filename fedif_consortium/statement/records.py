"""What a run left in its folder, read for a statement and checked."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat, TypeAdapter, ValidationError

from fedif_consortium.evidence.signed import first_of
from fedif_consortium.statement.manifest import SALT, read_file
from fedif_consortium.statement.own_parts import OwnPart
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.messages.screening import Status
from fedif_flower.run.completeness import Completeness, completeness
from fedif_flower.run.folder import BLOCK_COLUMN, BLOCKS_KEY, RunFolder, Table
from fedif_flower.run.rows import Line, read_table
from fedif_flower.run.secret_validation import COMMITMENT, NONCE, commitment_of, salt_of

ROUNDING = 1e-9  # Sums in another order, on another processor.
SAME_LOSS = 1e-4  # Of it: one model's loss, measured twice.
USUAL = ("length", "weight", "borrowed", "opposed")
_Row = TypeVar("_Row")
_Of = TypeVar("_Of", "Part", "Reply")


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
    against another one. Masked rounds are not split by blocks.
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


@dataclass(frozen=True)
class Reply:
    """What a statement needs of a line of ``clients.csv``."""

    round: int
    partition_id: int
    client_id: int
    status: Status
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

    def judged(self) -> Completeness:
        """Return whether what was asked for in these rounds came."""
        replies, attendance = map(vars, self.replies), _lines(self.folder.attendance)
        return completeness(self.lines, replies, attendance, self.names, self.config)

    @property
    def losses(self) -> list[float]:
        """The validation loss before the first round and after each, where it is finite."""
        all_of_them = [self.rounds[0].loss_before, *(row.loss_after for row in self.rounds)]
        return [loss for loss in all_of_them if math.isfinite(loss)] or [0.0]

    @property
    def block_weights(self) -> list[float]:
        """Each block's part of the held-out examples; empty: contributions are not split."""
        is_split = all(part.by_block for part in self.parts)
        return self.provenance.get(BLOCKS_KEY) or [] if is_split else []

    @property
    def own_parts(self) -> dict[int, OwnPart]:
        """What each member's updates have of their own."""
        found: dict[int, OwnPart] = {}
        for line in _lines(self.folder.own_parts):
            row = dict(line)
            client_id, rounds = row.pop("client_id"), row.pop("rounds")
            squares = row.pop("squares", 0.0)  # Earlier versions kept none.
            found[client_id] = OwnPart(rounds, squares, list(row.values()))
        return found

    @cached_property
    def signed(self) -> set[tuple[int, int]]:
        """Round and client id of the replies that were signed."""
        return {(row["round"], row["client_id"]) for row in _lines(self.folder.signatures)}

    @cached_property
    def parts_of(self) -> Mapping[int, list[Part]]:
        """Each member's parts, by client id."""
        return by_member(self.parts)

    @cached_property
    def by_round(self) -> NDArray[np.float64]:
        """What members contributed to each round, and are credited with, ``[2, T, n]``."""
        column = {client_id: i for i, client_id in enumerate(self.members)}
        row = {of_round.round: t for t, of_round in enumerate(self.rounds)}
        found = np.zeros((2, len(row), len(column)))
        for part in self.parts:
            found[:, row[part.round], column[part.client_id]] += part.contribution, part.credited
        return found

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
    for file in (folder.summary, folder.attribution, folder.attributed_rounds, folder.clients):
        if not file.path.is_file():
            why = (
                "it takes a run that came to its end with attribution = 'simpson', or in an app of "
                "its own with PathAttribution beside RunWriter"
            )
            raise ConfigError(f"{str(file.path)!r} is missing: {why}")
    rounds, replies = _parse(folder.attributed_rounds, RoundLoss), _parse(folder.clients, Reply)
    split = {"by_class": "contribution_class_", "by_block": BLOCK_COLUMN}
    parts = _parse(folder.attribution, Part, split)
    if not rounds or [row.round for row in rounds] != list(range(1, len(rounds) + 1)):
        raise ConfigError(f"{folder.attributed_rounds.path}: its rounds are not 1, 2, 3 ...")
    if len({(part.round, part.client_id) for part in parts}) < len(parts):  # Receipts have one.
        raise ConfigError(f"{folder.attribution.path}: a client is there twice in a round")
    held = {part.client_id: part.partition_id for part in parts}
    held |= {reply.client_id: reply.partition_id for reply in replies}
    if not held:
        raise ConfigError(f"{folder.clients.path}: nobody was asked in this run")
    return RunRecords(
        folder=folder,
        config=folder.settings(),
        provenance=folder.provenance.read(),
        rounds=rounds,
        parts=parts,
        replies=replies,
        members=dict(sorted(held.items(), key=lambda item: (item[1], item[0]))),
        names=read_names(folder.names.path) if names is None else names,
        lines=_lines(folder.rounds),
    )


def require_consistent(records: RunRecords) -> None:
    """Raise StatementError unless no table was cut off, rounds add up, and credit is at most given.

    That is, nobody is credited with more than it contributed, and each round begins at the loss
    that the one before ended with: which rounds count, and what is paid, follows from these.
    """
    run, attributed = records.folder, records.folder.attributed_rounds.path.name
    last = max((part.round for part in records.parts), default=0)
    told = [line["round"] for line in records.lines]
    if last > len(records.rounds) or told != [*range(len(records.rounds) + 1)]:
        raise StatementError(
            f"{run.attribution.path.name} ends with round {last}, {attributed} with "
            f"{len(records.rounds)}, {run.rounds.path.name} has {len(told) - 1}: was one cut off?"
        )
    lines = Counter(reply.round for reply in records.replies)
    for line in records.lines:
        counted = sum(line[status] for status in ("accepted", "rejected", "failed", "late"))
        if lines[line["round"]] != counted:
            raise StatementError(f"clients.csv has not {counted} lines of round {line['round']}")
    contributed, credited = records.by_round
    for row, total in zip(records.rounds, map(math.fsum, contributed), strict=True):
        scale = max(abs(row.decrease), abs(row.attributed), 1e-6)
        off = max(abs(row.attributed - total), abs(row.decrease - row.attributed - row.remainder))
        if off > 1e-6 * scale:
            raise StatementError(f"{attributed}: round {row.round} does not add up")
    _require_chained(records.rounds, attributed)
    # Over the whole run: a step that was taken back has both with the other sign.
    beyond = (credited - contributed).sum(axis=0) > ROUNDING * np.abs(contributed).sum(axis=0)
    for client_id in compress(records.members, beyond):
        name = run.attribution.path.name
        raise StatementError(f"{name}: client {client_id} is credited with more than it gave")


def _require_chained(rounds: Sequence[RoundLoss], name: str) -> None:
    """Raise StatementError unless falls are those between the losses, which lead on to each other.

    Else a round could be given any fall and remainder that add up.
    """
    for row in rounds:
        fall = row.loss_before - row.loss_after
        expected = fall if math.isfinite(fall) else 0.0
        if not math.isclose(row.decrease, expected, rel_tol=ROUNDING, abs_tol=ROUNDING):
            raise StatementError(
                f"{name}: round {row.round} has a fall of {row.decrease:.6g}, its losses one of "
                f"{expected:.6g}"
            )
    for before, row in pairwise(rounds):
        is_finite = math.isfinite(before.loss_after), math.isfinite(row.loss_before)
        is_same = math.isclose(before.loss_after, row.loss_before, rel_tol=SAME_LOSS)
        if is_finite != (False, False) and not is_same:
            raise StatementError(
                f"{name}: round {row.round} begins at a loss of {row.loss_before:.6g}, but round "
                f"{before.round} ended at {before.loss_after:.6g}"
            )


def read_names(path: Path) -> dict[int, str]:
    """Read members' names: a CSV file with the columns ``client_id`` and ``name``.

    Raises
    ------
    ConfigError
        Naming the file and the line: an id that is no whole number or is there twice, a name that
        is missing, longer than 80 characters or not printable.
    """
    names: dict[int, str] = {}
    for number, row in enumerate(Table(path, ("client_id", "name")).read(""), start=2):
        client_id, name = row.get("client_id", ""), row.get("name", "").strip()
        is_name = None not in row and 0 < len(name) <= 80 and name.isprintable()
        if not is_name or not client_id.isdecimal() or int(client_id) in names:
            raise ConfigError(
                f"{path}, line {number}: client_id = {client_id!r:.40}, name = {name!r:.90}; "
                "allowed: columns client_id and name, each id once, 1 to 80 printable characters"
            )
        names[int(client_id)] = name
    return names


def _parse(
    table: Table, kind: type[_Row], split: Mapping[str, str] = MappingProxyType({})
) -> tuple[_Row, ...]:
    """Return every line of a table as one of a kind; ``split`` says how columns of a list begin."""
    rows: list[dict[str, Any]] = []
    for row in table.read():
        there = {column: value for column, value in row.items() if value}
        lists = {
            name: [value for column, value in there.items() if str(column).startswith(start)]
            for name, start in split.items()
        }
        rows.append(there | lists)
    try:
        return TypeAdapter(tuple[kind, ...]).validate_python(rows)  # type: ignore[valid-type]
    except ValidationError as error:
        index, _, wrong = first_of(error).partition(".")
        raise ConfigError(f"{table.path}, line {int(index) + 2}: {wrong}") from error


def _lines(table: Table) -> list[Line]:
    found = read_table(table.path, more=True)
    # Others may be missing: columns were added from version to version.
    if found.num_rows and (first := table.columns[0]) not in found.column_names:
        raise ConfigError(f"{table.path} has no column {first!r}")
    return list(found.to_pylist())


def by_member(lines: Iterable[_Of]) -> Mapping[int, list[_Of]]:
    """Return each member's lines, by client id."""
    found = defaultdict[int, list[_Of]](list)
    for line in lines:
        found[line.client_id].append(line)
    return found
