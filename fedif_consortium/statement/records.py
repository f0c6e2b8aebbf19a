"""A run's records, read from its folder for a statement and checked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat

from fedif_consortium.statement.manifest import SALT, read_file
from fedif_consortium.statement.members_names import read_names
from fedif_consortium.statement.own_parts import OwnPart
from fedif_consortium.statement.typed_rows import (
    attendance_lines,
    parse_rows,
    refused_cell,
    typed_lines,
)
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
from fedif_flower.run.rows import Line
from fedif_flower.run.secret_validation import (
    COMMITMENT,
    NONCE,
    commitment_of,
    salt_of,
    secret_path,
)

# A round's figures: client id, contribution and credit of each member with a part in it.
StepFigures = frozenset[tuple[int, float, float]]
# Columns of whole numbers that a statement needs, in tables of which it reads every column.
_IN_ROUNDS = ("round", "accepted", "rejected", "failed", "late", "online", "round_failed")
_Line = TypeVar("_Line", "MemberRound", "Reply")


@dataclass(frozen=True)
class RoundLoss:
    """A line of ``attribution_rounds.csv``, in nats.

    Attributes
    ----------
    round : int
        The round.
    loss_before, loss_after : float
        The validation loss before and after the round; not finite if the model has diverged.
    decrease : float
        How much the loss fell; 0 if one of the two losses is not finite.
    attributed : float
        The sum of the members' contributions.
    remainder : float
        ``decrease`` less ``attributed``: the part that belongs to nobody.
    """

    round: int
    loss_before: float
    loss_after: float
    decrease: FiniteFloat
    attributed: FiniteFloat
    remainder: FiniteFloat


@dataclass(frozen=True)
class MemberRound:
    """A line of ``attribution.csv``: a client's part in a round.

    Attributes
    ----------
    round, partition_id, client_id : int
        The round and the client.
    contribution : float
        The client's contribution to the round, in nats.
    by_class : tuple of float
        The contribution by class; empty: it is not split by class.
    credited : float
        The client's credit for the round, in nats.
    length, weight, borrowed : float
        The length of its update, its weight, and how much the update repeats the last global steps,
        in multiples of what is usual.
    opposed : float
        How far its update is turned against another member's, from 0 to 1.
    by_block : tuple of float
        The contribution by block of held-out examples; empty in masked rounds.
    contribution_noise_low, contribution_noise_high : float, optional
        The contribution if the loss were corrected for the low, and for the high end of the
        interval of the share of wrong labels; ``None``: it is not known.
    credited_noise_low, credited_noise_high : float, optional
        The credit at both ends.
    by_block_noise_low, by_block_noise_high : tuple of float
        The contribution by block at both ends.
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

    def at_noise_end(self, end: str) -> MemberRound | None:
        """Return the line with the figures at one end of the interval of wrong labels.

        It is not split by class. ``None``: the figures are not known. ``end`` is ``"low"`` or
        ``"high"``.
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
    """The columns of a line of ``clients.csv`` that a statement needs."""

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
        The run's folder.
    config : mapping
        The run's settings by key; for an app of its own, the few that are known.
    provenance : mapping
        The content of ``provenance.json``: hashes of validation set and code, for example.
    rounds : tuple of RoundLoss
        The lines of ``attribution_rounds.csv``, one for each round, in order.
    member_rounds : tuple of MemberRound
        The lines of ``attribution.csv``, one for each client with a part in a round.
    replies : tuple of Reply
        The lines of ``clients.csv``: one for each request, and a second one for a late reply.
    members : mapping of int to int
        The partition of every member that was asked or contributed, by client id, in the order of
        the partitions. :meth:`without` keeps members of the rounds that it leaves out.
    names : mapping of int to str
        What members are called, by client id.
    lines : list of mapping
        The lines of ``rounds.csv``; those of a whole run begin with round 0.
    """

    folder: RunFolder
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    rounds: tuple[RoundLoss, ...]
    member_rounds: tuple[MemberRound, ...]
    replies: tuple[Reply, ...]
    members: Mapping[int, int]
    names: Mapping[int, str]
    lines: list[Line]

    def salt(self) -> str:
        """Return the salt that drew the secret data; empty: the run has none.

        If the run has a statement, the salt is read from it. Otherwise it is computed from the
        server's secret, which only the host has on which the run was.

        Raises
        ------
        StatementError
            If the run pays by secret data and committed to no salt, the salt is not the one that
            it committed to, or this host has not the secret.
        """
        if COMMITMENT not in self.provenance:
            if self.config.get("credit.secret-validation"):
                raise StatementError(
                    f"{self.folder.provenance.path.name} has no {COMMITMENT}, and the run has "
                    "credit.secret-validation = True"
                )
            return ""
        if self.folder.statement.is_dir():
            salt = read_file(self.folder.statement, SALT).decode().strip()
            wrong = "the salt is not the one that the run committed to"
        else:
            # A secret that is made here and now could not be the one of the run's server.
            salt = ""
            if secret_path().exists():
                salt = salt_of(str(self.provenance[NONCE]))
            wrong = (
                "this host has not the secret with which the run's server drew the data that pay; "
                "the run's statement opens what was drawn with it"
            )
        if commitment_of(salt) != self.provenance[COMMITMENT]:
            raise StatementError(wrong)
        return salt

    def known_ids(self) -> set[int]:
        """Return the client ids of all members that the run knows, asked or not.

        A simulated client's id is its partition, so all ids below ``num-clients`` are known.
        """
        client_ids = {*self.members, *self.registered_ids()}
        if all(client_id == partition for client_id, partition in self.members.items()):
            client_ids |= set(range(self.config.get("num-clients", 0)))
        return client_ids

    def registered_ids(self) -> set[int]:
        """Return the client ids of all members that the run knew as nodes, asked or not.

        They are those with a name in ``names.csv``, and those that were there. Heads bind both,
        so the ids do not depend on the names that the operator chooses for a statement.
        """
        there = {line["client_id"] for line in attendance_lines(self.folder.attendance)}
        return there | read_names(self.folder.names.path).keys()

    def completeness(self) -> Completeness:
        """Return how complete the replies in the records are."""
        replies = map(vars, self.replies)
        attendance = attendance_lines(self.folder.attendance)
        return completeness(self.lines, replies, attendance, self.names, self.config)

    @property
    def decrease(self) -> float:
        """The sum of the rounds' falls of the loss."""
        return math.fsum(row.decrease for row in self.rounds)

    @property
    def remainder(self) -> float:
        """The sum of the rounds' remainders, which belong to nobody."""
        return math.fsum(row.remainder for row in self.rounds)

    @property
    def block_weights(self) -> list[float]:
        """Each block's part of the held-out examples; empty: contributions have no blocks."""
        is_split = all(line.by_block for line in self.member_rounds)
        weights: list[float] | None = self.provenance.get(BLOCKS_KEY)
        if not is_split or not weights:
            return []
        return weights

    @property
    def own_parts(self) -> dict[int, OwnPart]:
        """The own part of each member's updates, by client id."""
        own_parts: dict[int, OwnPart] = {}
        table = self.folder.own_parts
        for number, line in enumerate(typed_lines(table, ("client_id", "rounds")), start=2):
            for column, value in line.items():
                if not isinstance(value, int | float) or not math.isfinite(value):
                    raise refused_cell(table, number, column, value, "a finite number")
            cells = dict(line)
            client_id = cells.pop("client_id")
            rounds = cells.pop("rounds")
            squares = cells.pop("squares", 0.0)  # Earlier versions did not keep the squares.
            sums = list(cells.values())  # All columns that are left, whatever their number.
            own_parts[client_id] = OwnPart(rounds, squares, sums)
        return own_parts

    @cached_property
    def signed(self) -> set[tuple[int, int]]:
        """The round and the client id of each reply that was signed."""
        rows = typed_lines(self.folder.signatures, ("round", "client_id"))
        return {(row["round"], row["client_id"]) for row in rows}

    @cached_property
    def rounds_of(self) -> Mapping[int, list[MemberRound]]:
        """Each member's rounds, by client id."""
        return by_member(self.member_rounds)

    @cached_property
    def taken_back(self) -> Mapping[int, int]:
        """The round whose step was taken back, by the round that took it back.

        A round that takes a step back is recognised by its figures: they are all contributions and
        credits of the step, with the other sign.
        """
        rounds_by_number = defaultdict[int, list[MemberRound]](list)
        for line in self.member_rounds:
            rounds_by_number[line.round].append(line)
        last_round_with: dict[StepFigures, int] = {}
        taken_back = {}
        for number, member_rounds in sorted(rounds_by_number.items()):
            if not any(line.contribution for line in member_rounds):
                continue
            figures = frozenset(
                (line.client_id, line.contribution, line.credited) for line in member_rounds
            )
            figures_of_undone = _negated(figures)
            if figures_of_undone in last_round_with:
                taken_back[number] = last_round_with.pop(figures_of_undone)
            else:
                last_round_with[figures] = number
        return taken_back

    @cached_property
    def by_round(self) -> NDArray[np.float64]:
        """Contributions and credits by round, ``[2, T, n]``, in the order of ``members``."""
        columns = {client_id: i for i, client_id in enumerate(self.members)}
        rows = {row.round: t for t, row in enumerate(self.rounds)}
        sums = np.zeros((2, len(rows), len(columns)))
        for line in self.member_rounds:
            place = (rows[line.round], columns[line.client_id])
            sums[0][place] += line.contribution
            sums[1][place] += line.credited
        return sums

    def at_noise_ends(self) -> list[RunRecords]:
        """Return the records as they would be at the low and the high end of wrong labels.

        Contributions, credits and contributions by block are those with the loss corrected for that
        end of the interval. The list is empty if they are not known for all lines.
        """
        ends = []
        for end in NOISE_ENDS:
            member_rounds = [line.at_noise_end(end) for line in self.member_rounds]
            known_rounds = tuple(line for line in member_rounds if line is not None)
            if len(known_rounds) < len(member_rounds) or not member_rounds:
                return []
            ends.append(replace(self, member_rounds=known_rounds))
        return ends

    def without(self, rounds: Collection[int]) -> RunRecords:
        """Return the records without the contributions to some rounds; replies and members stay."""
        return replace(
            self,
            rounds=tuple(row for row in self.rounds if row.round not in rounds),
            member_rounds=tuple(line for line in self.member_rounds if line.round not in rounds),
        )


def _negated(figures: StepFigures) -> StepFigures:
    """Return a round's figures with the other sign."""
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
        If the run did not come to its end, was run without attribution, or a line of a table is not
        as it should be. The message names the file.
    """
    folder = RunFolder(run_dir)
    _require_complete(folder)
    rounds = parse_rows(folder.attributed_rounds, RoundLoss)
    replies = parse_rows(folder.clients, Reply)
    lists = {"by_class": CLASS_COLUMN, "by_block": BLOCK_COLUMN}
    for end in NOISE_ENDS:
        lists[f"by_block_noise_{end}"] = noise_block_column(end)
    member_rounds = parse_rows(folder.attribution, MemberRound, lists)
    if not rounds or [row.round for row in rounds] != list(range(1, len(rounds) + 1)):
        raise ConfigError(f"{folder.attributed_rounds.path}: its rounds are not 1, 2, 3 ...")
    # A client has at most one line in a round; receipts rely on that too.
    if len({(line.round, line.client_id) for line in member_rounds}) < len(member_rounds):
        raise ConfigError(f"{folder.attribution.path}: a client is there twice in a round")
    members = _members(member_rounds, replies)
    if not members:
        raise ConfigError(f"{folder.clients.path}: nobody was asked in this run")
    if names is None:
        names = read_names(folder.names.path)
    return RunRecords(
        folder=folder,
        config=folder.settings(),
        provenance=folder.provenance.read(),
        rounds=rounds,
        member_rounds=member_rounds,
        replies=replies,
        members=members,
        names=names,
        lines=typed_lines(folder.rounds, _IN_ROUNDS),
    )


def _require_complete(folder: RunFolder) -> None:
    """Raise ConfigError, which names the missing file, unless a run ended and was attributed."""
    tables = (folder.attribution, folder.attributed_rounds, folder.clients, folder.rounds)
    for file in (folder.summary, *tables):
        if not file.path.is_file():
            raise ConfigError(
                f"{str(file.path)!r} is missing: it takes a run that came to its end with "
                "attribution = 'simpson', or in an app of its own with PathAttribution beside "
                "RunWriter"
            )


def _members(member_rounds: Iterable[MemberRound], replies: Iterable[Reply]) -> dict[int, int]:
    """Return the members' partitions by client id, in the order of the partitions."""
    partitions = {line.client_id: line.partition_id for line in member_rounds}
    partitions |= {reply.client_id: reply.partition_id for reply in replies}
    in_order = sorted(partitions, key=lambda client_id: (partitions[client_id], client_id))
    return {client_id: partitions[client_id] for client_id in in_order}


def by_member(lines: Iterable[_Line]) -> Mapping[int, list[_Line]]:
    """Return the lines of each member, by client id."""
    lines_of = defaultdict[int, list[_Line]](list)
    for line in lines:
        lines_of[line.client_id].append(line)
    return lines_of
