"""A run's folder as an object."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedif_flower.attribution.intervals import ends_of, intervals
from fedif_flower.errors import ConfigError, require
from fedif_flower.foreign import refused_as
from fedif_flower.messages.client_node import called
from fedif_flower.run.completeness import Completeness, completeness
from fedif_flower.run.config import subject_of
from fedif_flower.run.folder import BLOCK_COLUMN, BLOCKS_KEY, RunFolder
from fedif_flower.run.plots import new_figure, save_figure
from fedif_flower.run.rows import Line, read_table
from fedif_flower.tables import ResultTable, shown_number

if TYPE_CHECKING:
    from pandas import DataFrame

UNFINISHED = "unfinished"  # It goes on, or was stopped: its completeness is not known yet.
TABLES = ("members", "rounds", "clients", "attendance", "attribution")
_MOST_BARS = 40  # Members that a picture has room for.


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
        The ends of its 95 % interval; :attr:`Run.interval` says what it is about.
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
        Its run config and figures; empty where it left none. An app of its own has no run config.

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
        """Strategy, data and attack; without a run config its report's title or folder's name."""
        if self.config:
            return run_title(self.config)
        return str(self.summary.get("title") or self.name)

    @property
    def state(self) -> str:
        """What its report says of its completeness, in a word or three; before its end, that."""
        return self.completeness.verdict if self.summary else UNFINISHED

    def __repr__(self) -> str:
        """Say how far it came."""
        where = repr(str(self.folder.path))
        return f"Run({where}: {self.title}, {self.last_round} rounds, {self.state})"

    @property
    def last_round(self) -> int:
        """How far it came."""
        return max((line["round"] for line in self.lines("rounds")), default=0)

    def lines(self, table: str = "members") -> list[Line]:
        """Return a table's lines by column, in numbers where they are numbers.

        Parameters
        ----------
        table : {"members", "rounds", "clients", "attendance", "attribution"}
            A line for each member; for each round; for each client in a round; wherever a member
            came or left; for what each contributed to a round.

        Raises
        ------
        ConfigError
            If there is no such table.
        """
        require(table in TABLES, "table", table, ", ".join(TABLES))
        if table == "members":
            return [vars(member) for member in self.members]
        found: list[Line] = read_table(getattr(self.folder, table).path, more=True).to_pylist()
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
    def names(self) -> dict[int, str]:
        """What the operator calls members, by client id."""
        lines = read_table(self.folder.names.path, more=True).to_pylist()
        return {line["client_id"]: line["name"] for line in lines}

    @cached_property
    def completeness(self) -> Completeness:
        """Whether what it asked for came."""
        rounds, clients, changes = map(self.lines, ("rounds", "clients", "attendance"))
        return completeness(rounds, clients, changes, self.names, self._settings)

    @property
    def _settings(self) -> Mapping[str, Any]:
        """What is known of its settings; a run that has just begun may have left none."""
        try:
            return self.folder.settings()
        except FileNotFoundError:
            return {}

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Everybody who was asked, the largest contribution first, else the largest score."""
        with refused_as(ConfigError, f"the tables of {self.folder.path} cannot be read"):
            found: dict[int, list[Line]] = {}
            for line in self.lines("clients"):
                found.setdefault(line["client_id"], []).append(line)
            contributed = self._contributions()
            members = []
            for client_id, lines in found.items():
                status = Counter(line["status"] for line in lines)
                contribution, low, high = contributed.get(client_id, (None, None, None))
                scores = [line["weight_score"] for line in lines]
                member = Member(
                    client_id=client_id,
                    partition_id=lines[-1]["partition_id"],
                    name=self.names.get(client_id, ""),
                    accepted=status["accepted"],
                    refused=status["refused"],
                    failed=status["failed"],
                    away=status["away"],
                    contribution=contribution,
                    low=low,
                    high=high,
                    weight_score=next((s for s in reversed(scores) if s is not None), None),
                    weight=math.fsum(line["weight"] or 0.0 for line in lines),
                    malicious=bool(lines[-1]["malicious"]),
                )
                members.append(member)
            by = "contribution" if contributed else "weight_score"
            return tuple(sorted(members, key=lambda member: _place(member, by)))

    def sort(self, by: str) -> tuple[Member, ...]:
        """Return the members in the order of a column, the largest first; texts from A on.

        Raises
        ------
        ConfigError
            If there is no such column.
        """
        columns = [field.name for field in fields(Member)]
        require(by in columns, "sort", by, ", ".join(columns))
        return tuple(sorted(self.members, key=lambda member: _place(member, by)))

    def table(self, by: str = "") -> ResultTable:
        """Return the members as a table, in the order of a column; what nobody has is left out."""
        members = self.sort(by) if by else self.members
        lines = [
            {
                "member": m.label + (" (malicious)" if m.malicious else ""),
                "contribution": shown_number(m.contribution),
                self.interval: "-" if m.low is None else f"{m.low:.4f} to {m.high:.4f}",
                "weight score": shown_number(m.weight_score),
                "weight": f"{m.weight:.3f}",
                "accepted": str(m.accepted),
                "refused": str(m.refused),
                "failed": str(m.failed or "-"),
                "away": str(m.away),
            }
            for m in members
        ]
        columns = lines[0] if lines else ()
        shown = [name for name in columns if any(line[name] != "-" for line in lines)]
        return ResultTable(self.title, shown, [[line[n] for n in shown] for line in lines], 1)

    def plot(self, path: str | Path) -> Path:
        """Draw what each member contributed, with its interval; else its weight score.

        Raises
        ------
        ConfigError
            If the run has neither.
        """
        attributed = any(member.contribution is not None for member in self.members)
        by = "contribution" if attributed else "weight_score"
        shown = [m for m in self.members if getattr(m, by) is not None][:_MOST_BARS][::-1]
        if not shown:
            raise ConfigError(f"{self.name}: neither contributions nor weight scores to draw")
        figure = new_figure(height=1.2 + 0.25 * len(shown))
        axes = figure.subplots()
        values = np.array([getattr(member, by) for member in shown])
        colours = ["C1" if member.malicious else "C0" for member in shown]
        ends: Any = None
        if all(member.low is not None for member in shown):
            lows, highs = np.array([(member.low, member.high) for member in shown]).T
            # A width of 0 may be less by rounding, which a picture refuses.
            ends = np.maximum([values - lows, highs - values], 0.0)
        axes.barh(range(len(shown)), values, xerr=ends, color=colours)
        axes.set_yticks(range(len(shown)), [member.label for member in shown])
        what = "decrease of the validation loss" if attributed else "weight score"
        axes.set(xlabel=what, title=self.title)
        axes.grid(alpha=0.3, axis="x")
        save_figure(figure, Path(path))
        return Path(path)

    @cached_property
    def attributed(self) -> tuple[list[Line], list[Line]]:
        """What each round gained, and each client's part of it; rounds that are complete."""
        rounds = read_table(self.folder.attributed_rounds.path, more=True).to_pylist()
        numbers = {row["round"] for row in rounds}  # Where its own line is, its clients' are.
        kinds = dict.fromkeys(["contribution", *self._blocks], "double")
        columns = {"round": "int64", "client_id": "uint64", **kinds}
        parts = read_table(self.folder.attribution.path, columns).to_pylist()
        return rounds, [row for row in parts if row["round"] in numbers]

    @cached_property
    def _blocks(self) -> dict[str, float]:
        """The columns of blocks of held-out examples, and each one's part of the examples."""
        provenance = self.folder.provenance
        weights = provenance.read().get(BLOCKS_KEY) or [] if provenance.path.exists() else []
        return {f"{BLOCK_COLUMN}{k}": weight for k, weight in enumerate(weights)}

    @property
    def _is_split(self) -> bool:
        """Whether all contributions are split by blocks; those of masked rounds are not."""
        parts = self.attributed[1]
        return bool(self._blocks) and all(row[k] is not None for row in parts for k in self._blocks)

    @property
    def interval(self) -> str:
        """What members' intervals are about: other held-out examples, or luck of the rounds."""
        return f"95 %, other {'held-out set' if self._is_split else 'rounds'}"

    def _contributions(self) -> dict[int, tuple[float, float | None, float | None]]:
        """Return each member's contribution over the run, and the ends of its interval."""
        rounds, parts = self.attributed
        times = {row["round"]: t for t, row in enumerate(rounds)}
        places = {i: k for k, i in enumerate(sorted({row["client_id"] for row in parts}))}
        per_round = np.zeros((len(times), len(places)))  # [T, n]
        for row in parts:
            per_round[times[row["round"]], places[row["client_id"]]] = row["contribution"]
        ends = intervals(per_round)
        if self._is_split:
            by_block = np.zeros((len(self._blocks), len(places)))  # [B, n]
            for row in parts:
                by_block[:, places[row["client_id"]]] += [row[name] for name in self._blocks]
            ends = ends_of(by_block, np.array(list(self._blocks.values())))
        sums = [math.fsum(per_round[:, k]) for k in places.values()]
        known = [(None, None)] * len(sums) if ends is None else ends.tolist()
        return {i: (sums[k], *known[k]) for i, k in places.items()}


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


def run_title(settings: Mapping[str, Any]) -> str:
    """Return what a run is called."""
    named = settings.get("attack", "none")  # A RunWriter knows of none.
    attack = "" if named == "none" else f", attack: {named}"
    return f"{settings.get('strategy', '?')} on {subject_of(settings)}{attack}"


def _place(member: Member, by: str) -> tuple[Any, int]:
    """Return what members are sorted by: the largest value of a column first."""
    if by == "name":
        return member.label, member.client_id
    value = getattr(member, by)
    return math.inf if value is None else -value, member.client_id
