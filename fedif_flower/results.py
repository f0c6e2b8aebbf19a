"""A run's folder as an object."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as
from fedif_flower.messages.client_node import called
from fedif_flower.run.config import subject_of
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.plots import new_figure, save_figure
from fedif_flower.run.read_tables import read_table
from fedif_flower.run.report import run_title
from fedif_flower.valuation.intervals import intervals

if TYPE_CHECKING:
    from pandas import DataFrame

TABLES = ("members", "rounds", "clients", "attribution")
_MOST_BARS = 40  # Members that a picture has room for.
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Member:
    """What became of a member over a run.

    Attributes
    ----------
    client_id, partition_id : int
        Its lasting id, and the part of the data that it says it holds (-1: unknown).
    name : str
        What the operator calls it; empty: nothing.
    accepted, refused, failed, away : int
        Its rounds, by what became of its reply.
    contribution : float, optional
        In nats of validation loss, where the run attributed contributions.
    low, high : float, optional
        The ends of its 95 % interval, from five rounds on (see
        :func:`~fedif_flower.valuation.intervals.intervals`).
    weight_score : float, optional
        Omega after its last round, where the strategy has one.
    weight : float
        The sum of its aggregation weights.
    malicious : bool
        Whether it is known to misbehave.
    """

    client_id: int
    partition_id: int
    name: str
    accepted: int
    refused: int
    failed: int
    away: int
    contribution: float | None
    low: float | None
    high: float | None
    weight_score: float | None
    weight: float
    malicious: bool

    @property
    def label(self) -> str:
        """How a table calls it."""
        return called(self.client_id, self.partition_id, self.name)


class Run:
    """What a run left in its folder: complete, stopped, going on, or written by a ``RunWriter``.

    Parameters
    ----------
    path : str or Path
        The folder.

    Attributes
    ----------
    folder : RunFolder
        Its files.
    config, summary : mapping
        Its settings and figures; empty where it left none.

    Raises
    ------
    ConfigError
        If there is no run.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder(path)
        if not self.folder.rounds.path.is_file():
            raise ConfigError(f"{str(path)!r} holds no run: there is no rounds.csv")
        self.config = self.folder.config.read() if self.folder.config.path.is_file() else {}
        self.summary = self.folder.summary.read() if self.folder.summary.path.is_file() else {}

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.path.name

    @property
    def title(self) -> str:
        """Strategy, data and attack; the folder's name where there is no run config."""
        return run_title(self.config, subject_of(self.config)) if self.config else self.name

    def __repr__(self) -> str:
        """Say how far it came."""
        last = max((line["round"] for line in self.lines("rounds")), default=0)
        state = "complete" if self.summary else "not complete"
        return f"Run({str(self.folder.path)!r}: {self.title}, {last} rounds, {state})"

    def lines(self, table: str = "members") -> list[Line]:
        """Return a table's lines by column, in numbers where they are numbers.

        Parameters
        ----------
        table : {"members", "rounds", "clients", "attribution"}
            A line for each member; for each round; for each client in a round; for what each
            contributed to a round.

        Raises
        ------
        ConfigError
            If there is no such table.
        """
        if table not in TABLES:
            raise ConfigError(f"table = {table!r}; allowed: {', '.join(TABLES)}")
        if table == "members":
            return [vars(member) for member in self.members]
        ids = {} if table == "rounds" else {"client_id": pa.uint64()}
        path = getattr(self.folder, table).path
        found: list[Line] = read_table(path, ids, more=True).to_pylist()
        return found

    def to_pandas(self, table: str = "members") -> DataFrame:
        """Return a table as a pandas ``DataFrame``; see :meth:`lines` for which.

        Raises
        ------
        ImportError
            If pandas is not installed.
        ConfigError
            If there is no such table.
        """
        from pandas import DataFrame  # Nothing else needs it.

        return DataFrame(self.lines(table))

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Everybody who was asked, the largest contribution first, else the largest score."""
        with refused_as(ConfigError, f"the tables of {self.folder.path} cannot be read"):
            return self._members()

    def _members(self) -> tuple[Member, ...]:
        found: dict[int, list[Line]] = {}
        for line in self.lines("clients"):
            found.setdefault(line["client_id"], []).append(line)
        names = {int(row["client_id"]): row["name"] for row in self.folder.names.read()}
        contributed = self._contributions()
        return self.sort(
            "contribution" if contributed else "weight_score",
            [_member(i, lines, names.get(i, ""), contributed.get(i)) for i, lines in found.items()],
        )

    def sort(self, by: str, members: Sequence[Member] | None = None) -> tuple[Member, ...]:
        """Return the members in the order of a column, the largest first; texts from A on.

        Raises
        ------
        ConfigError
            If there is no such column.
        """
        columns = [field.name for field in fields(Member)]
        if by not in columns:
            raise ConfigError(f"sort = {by!r}; allowed: {', '.join(columns)}")
        ordered = sorted(self.members if members is None else members, key=lambda m: m.client_id)
        if by == "name":
            return tuple(sorted(ordered, key=lambda member: member.label))

        def size(member: Member) -> float:
            value = getattr(member, by)
            return math.inf if value is None else -value

        return tuple(sorted(ordered, key=size))

    def plot(self, path: str | Path) -> Path:
        """Draw what each member contributed, with its interval; else its weight score.

        Raises
        ------
        ConfigError
            If the run has neither.
        """
        attributed = any(member.contribution is not None for member in self.members)
        by = "contribution" if attributed else "weight_score"
        shown = [m for m in self.sort(by) if getattr(m, by) is not None][:_MOST_BARS][::-1]
        if not shown:
            raise ConfigError(f"{self.name}: neither contributions nor weight scores to draw")
        figure = new_figure(height=1.2 + 0.25 * len(shown))
        axes = figure.subplots()
        values = [getattr(member, by) for member in shown]
        colours = ["C1" if member.malicious else "C0" for member in shown]
        ends: Any = None
        if all(member.low is not None and member.high is not None for member in shown):
            lows, highs = ([getattr(m, end) for m in shown] for end in ("low", "high"))
            # A sum may lie outside of the quantiles of its resamples.
            ends = [
                [max(v - low, 0.0) for v, low in zip(values, lows, strict=True)],
                [max(high - v, 0.0) for v, high in zip(values, highs, strict=True)],
            ]
        axes.barh(range(len(shown)), values, xerr=ends, color=colours)
        axes.set_yticks(range(len(shown)), [member.label for member in shown])
        what = "decrease of the validation loss" if attributed else "weight score"
        axes.set(xlabel=what, title=self.title)
        axes.grid(alpha=0.3, axis="x")
        save_figure(figure, Path(path))
        return Path(path)

    def _contributions(self) -> dict[int, tuple[float, float | None, float | None]]:
        """Return each member's contribution over the run, and the ends of its interval."""
        rows = self.lines("attribution")
        # Where a round's own line is, its clients' are complete.
        rounds = [int(row["round"]) for row in self.folder.attributed_rounds.read()]
        ids = sorted({row["client_id"] for row in rows})
        per_round = np.zeros((len(rounds), len(ids)))  # [T, n]
        index = {number: t for t, number in enumerate(rounds)}
        for row in rows:
            if row["round"] in index:
                per_round[index[row["round"]], ids.index(row["client_id"])] = row["contribution"]
        ends = intervals(per_round)
        return {
            client_id: (
                math.fsum(per_round[:, i]),
                *((None, None) if ends is None else (float(ends[i, 0]), float(ends[i, 1]))),
            )
            for i, client_id in enumerate(ids)
        }


def load(path: str | Path) -> Run:
    """Return what a run left in its folder.

    Parameters
    ----------
    path : str or Path
        The folder, as a run's last line names it.

    Raises
    ------
    ConfigError
        If there is no run.
    """
    return Run(path)


def _member(
    client_id: int,
    lines: Sequence[Line],
    name: str,
    contributed: tuple[float, float | None, float | None] | None,
) -> Member:
    status = Counter(line["status"] for line in lines)
    scores = [line["weight_score"] for line in lines if line.get("weight_score") is not None]
    contribution, low, high = contributed or (None, None, None)
    return Member(
        client_id=client_id,
        partition_id=lines[-1]["partition_id"],
        name=name,
        **{what: status[what] for what in ("accepted", "refused", "failed", "away")},
        contribution=contribution,
        low=low,
        high=high,
        weight_score=scores[-1] if scores else None,
        weight=math.fsum(line["weight"] or 0.0 for line in lines),
        malicious=bool(lines[-1]["malicious"]),
    )
