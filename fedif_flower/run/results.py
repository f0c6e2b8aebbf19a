"""A run's folder as an object."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedif_flower.attribution.intervals import ends_of, intervals
from fedif_flower.attribution.table import BLOCK_COLUMN, BLOCKS_KEY
from fedif_flower.errors import ConfigError, require
from fedif_flower.foreign import refused_as, visible
from fedif_flower.messages.client_node import called
from fedif_flower.run.completeness import Completeness, completeness
from fedif_flower.run.config import subject_of
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.palette import HONEST, MALICIOUS
from fedif_flower.run.plots import dress, new_figure, plot_rounds, save_figure
from fedif_flower.run.rows import Line, read_table
from fedif_flower.tables import ResultTable, decimals_for, shown_number

if TYPE_CHECKING:
    from pandas import DataFrame

UNFINISHED = "unfinished"  # It goes on, or was stopped: its completeness is not known yet.
TABLES = ("members", "rounds", "clients", "attendance", "attribution")
DRAWN = ("members", "rounds")
_MOST_BARS = 40  # Members that a picture has room for.
# What a member contributed, and the ends of its interval.
_Contribution = tuple[float | None, float | None, float | None]
_UNKNOWN: _Contribution = (None, None, None)


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
        Its rounds, by what became of its reply; away: none came, or its registration had ended. One
        that may yet come is in none of them.
    contribution : float, optional
        By how much its updates lowered the validation loss (in nats for a cross-entropy), where the
        run attributed contributions.
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
        if not self.folder.holds_run():
            raise ConfigError(f"{str(path)!r} holds no run: there is no rounds.csv")
        self.config = self.folder.config.read_if_there()
        self.summary = self.folder.summary.read_if_there()

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
        """Whether it is complete, as its report says it; before its end it is unfinished."""
        if not self.summary:
            return UNFINISHED
        return self.completeness.verdict

    def __repr__(self) -> str:
        """Say how far it came."""
        where = repr(str(self.folder.path))
        last_round = self.last_round  # Which reads the table of rounds.
        rounds = "1 round" if last_round == 1 else f"{last_round} rounds"
        return f"Run({where}: {visible(self.title)}, {rounds}, {self.state})"

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
            return [dict(vars(member)) for member in self.members]
        path = getattr(self.folder, table).path
        lines: list[Line] = read_table(path, more=True).to_pylist()
        return lines

    def lines_of_complete_rounds(self) -> list[Line]:
        """Return the lines of ``clients.csv`` without a round that goes on, or that was cut off.

        A round's own line in ``rounds.csv`` is written last.
        """
        last = self.last_round
        return [line for line in self.lines("clients") if line["round"] <= last]

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
        """Whether what it asked for came, in complete rounds."""
        attendance = [line for line in self.lines("attendance") if line["round"] <= self.last_round]
        return completeness(
            self.lines("rounds"),
            self.lines_of_complete_rounds(),
            attendance,
            self.names,
            self._settings,
        )

    @property
    def _settings(self) -> Mapping[str, Any]:
        """What is known of its settings; a run that has just begun may have left none."""
        try:
            return self.folder.settings()
        except FileNotFoundError:
            return {}

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Everybody who was asked in a complete round, the largest contribution or score first."""
        with refused_as(ConfigError, f"the tables of {self.folder.path} cannot be read"):
            lines_by_client: dict[int, list[Line]] = {}
            for line in self.lines_of_complete_rounds():
                lines_by_client.setdefault(line["client_id"], []).append(line)
            contributions = self._contributions()
            members = []
            for client_id, lines in lines_by_client.items():
                name = self.names.get(client_id, "")
                members.append(_member(name, lines, contributions.get(client_id, _UNKNOWN)))
            column = "contribution" if contributions else "weight_score"
            return tuple(sorted(members, key=lambda member: _place(member, column)))

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
        members = self.members
        if by:
            members = self.sort(by)
        forms = {column: _form_of(members, column) for column in ("contribution", "weight_score")}
        lines = [self._table_line(member, forms) for member in members]
        columns = _columns_with_values(lines)
        cells = [[line[column] for column in columns] for line in lines]
        return ResultTable(self.title, columns, cells, num_labels=1)

    def _table_line(self, member: Member, forms: Mapping[str, str]) -> dict[str, str]:
        """Return a member's cells by column; a dash where there is nothing."""
        form = forms["contribution"]
        label = member.label
        if member.malicious:
            label += " (malicious)"
        interval = "-"
        if member.low is not None:
            interval = f"{shown_number(member.low, form)} to {shown_number(member.high, form)}"
        return {
            "member": label,
            "contribution": shown_number(member.contribution, form),
            self.interval: interval,
            "weight score": shown_number(member.weight_score, forms["weight_score"]),
            "weight": f"{member.weight:.3f}",
            "accepted": str(member.accepted),
            "refused": str(member.refused),
            "failed": str(member.failed or "-"),
            "away": str(member.away),
        }

    def plot(self, path: str | Path, of: str = "members") -> Path:
        """Draw the members, or what each had in each round.

        Parameters
        ----------
        path : str or Path
            The PNG file, ``*.png``.
        of : {"members", "rounds"}
            What each member contributed, with its interval (else its weight score), of the 40
            members who come first; or its influence and its weight over the rounds.

        Raises
        ------
        ConfigError
            If the run has nothing of it, or the path is that of another kind of file.
        """
        require(of in DRAWN, "of", of, ", ".join(DRAWN))
        # Else a program that goes by the name would take the file for what it is not.
        require(Path(path).suffix.lower() == ".png", "picture", str(path), "a file *.png")
        if of == "rounds":
            return self._plot_rounds(Path(path))
        return self._plot_members(Path(path))

    def _plot_rounds(self, path: Path) -> Path:
        """Draw members' influences and weights over the rounds; a column that nobody has is out."""
        columns = {}
        lines = self.lines_of_complete_rounds()
        for column, name in (("score", "influence"), ("weight", "weight")):
            series: dict[int, list[tuple[int, float]]] = {}
            for line in lines:
                if line[column] is not None:
                    series.setdefault(line["client_id"], []).append((line["round"], line[column]))
            if series:
                columns[name] = series
        if not columns:
            raise ConfigError(f"{self.name}: neither influences nor weights to draw")
        members = {member.client_id: (member.label, member.malicious) for member in self.members}
        plot_rounds(columns, members, self.last_round, path, title=self.title)
        return path

    def _plot_members(self, path: Path) -> Path:
        if any(member.contribution is not None for member in self.members):
            column = "contribution"
            xlabel = "decrease of the validation loss"
        else:
            column = "weight_score"
            xlabel = "weight score"
        shown = [member for member in self.members if getattr(member, column) is not None]
        if not shown:
            raise ConfigError(f"{self.name}: neither contributions nor weight scores to draw")
        title = self.title
        if len(shown) > _MOST_BARS:
            title += f"\nthe first {_MOST_BARS} of {len(shown)} members"
            shown = shown[:_MOST_BARS]
        shown.reverse()  # Bars are drawn from below, and the first member is to be at the top.
        figure = new_figure(height=1.2 + 0.25 * len(shown))
        axes = figure.subplots()
        values = np.array([getattr(member, column) for member in shown])
        reach = _error_bars(shown, values)
        if reach is not None:
            xlabel += f"; line: {self.interval}"
        bars = axes.barh(range(len(shown)), values, xerr=reach, color=HONEST)
        for member, bar in zip(shown, bars, strict=True):
            if member.malicious:
                bar.set(facecolor=MALICIOUS, edgecolor="white", hatch="//")
        axes.set_yticks(range(len(shown)), [_called_in_picture(member) for member in shown])
        axes.set(xlabel=xlabel, title=title)
        dress(axes)
        save_figure(figure, path)
        return path

    @cached_property
    def attributed(self) -> tuple[list[Line], list[Line]]:
        """What each round gained, and each client's part of it; rounds that are complete."""
        rounds = read_table(self.folder.attributed_rounds.path, more=True).to_pylist()
        # A round's own line is written last: where there is one, its clients' lines are complete.
        complete = {row["round"] for row in rounds}
        columns = {"round": "int64", "client_id": "uint64", "contribution": "double"}
        for column in self._blocks:
            columns[column] = "double"
        parts = read_table(self.folder.attribution.path, columns).to_pylist()
        return rounds, [row for row in parts if row["round"] in complete]

    @cached_property
    def _blocks(self) -> dict[str, float]:
        """Each block's part of the held-out examples, by its column of contributions."""
        weights = self.folder.provenance.read_if_there().get(BLOCKS_KEY) or []
        return {f"{BLOCK_COLUMN}{block}": weight for block, weight in enumerate(weights)}

    @property
    def _is_split(self) -> bool:
        """Whether all contributions are split by blocks; those of masked rounds are not."""
        if not self._blocks:
            return False
        for row in self.attributed[1]:
            if any(row[column] is None for column in self._blocks):
                return False
        return True

    @property
    def interval(self) -> str:
        """What members' intervals are about: other held-out examples, or luck of the rounds."""
        if self._is_split:
            return "95 %, other held-out set"
        return "95 %, other rounds"

    def _contributions(self) -> dict[int, _Contribution]:
        """Return each member's contribution over the run, and the ends of its interval."""
        rounds, parts = self.attributed
        client_ids = sorted({row["client_id"] for row in parts})
        column_of = {client_id: k for k, client_id in enumerate(client_ids)}
        row_of = {row["round"]: t for t, row in enumerate(rounds)}
        per_round = np.zeros((len(row_of), len(client_ids)))  # [T, n]
        for part in parts:
            per_round[row_of[part["round"]], column_of[part["client_id"]]] = part["contribution"]
        ends = intervals(per_round)  # [n, 2]
        if self._is_split:
            by_block = np.zeros((len(self._blocks), len(client_ids)))  # [B, n]
            for part in parts:
                of_client = [part[column] for column in self._blocks]
                by_block[:, column_of[part["client_id"]]] += of_client
            ends = ends_of(by_block, np.array(list(self._blocks.values())))
        contributions: dict[int, _Contribution] = {}
        for k, client_id in enumerate(client_ids):
            total = math.fsum(per_round[:, k])
            if ends is None:
                contributions[client_id] = (total, None, None)
            else:
                low, high = ends[k].tolist()
                contributions[client_id] = (total, low, high)
        return contributions


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
    title = f"{settings.get('strategy', '?')} on {subject_of(settings)}"
    attack = settings.get("attack", "none")  # A RunWriter knows of none.
    if attack != "none":
        title += f", attack: {attack}"
    return title


def _member(name: str, lines: Sequence[Line], contribution: _Contribution) -> Member:
    """Return what became of a member, from its lines of ``clients.csv``."""
    status = Counter(line["status"] for line in lines)
    weight_score = None
    for line in lines:
        if line["weight_score"] is not None:
            weight_score = line["weight_score"]
    total, low, high = contribution
    latest = lines[-1]
    return Member(
        client_id=latest["client_id"],
        partition_id=latest["partition_id"],
        name=name,
        accepted=status["accepted"],
        refused=status["refused"],
        failed=status["failed"],
        away=status["away"] + status["revoked"],
        contribution=total,
        low=low,
        high=high,
        weight_score=weight_score,
        weight=math.fsum(line["weight"] or 0.0 for line in lines),
        malicious=bool(latest["malicious"]),
    )


def _form_of(members: Sequence[Member], column: str) -> str:
    """Return the format in which a column's values can be told apart, however small they are."""
    values = [getattr(member, column) for member in members]
    return f".{decimals_for(value for value in values if value is not None)}f"


def _columns_with_values(lines: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the columns in which a line has something."""
    if not lines:
        return []
    columns = []
    for column in lines[0]:
        values = {line[column] for line in lines}
        if values != {"-"}:
            columns.append(column)
    return columns


def _called_in_picture(member: Member) -> str:
    if member.malicious:
        return f"{member.label} (malicious)"
    return member.label


def _error_bars(members: Sequence[Member], values: NDArray[np.float64]) -> Any:
    """Return how far intervals reach to both sides, ``[2, n]``, where every member has one."""
    if any(member.low is None for member in members):
        return None
    lows = np.array([member.low for member in members])
    highs = np.array([member.high for member in members])
    # A width of 0 may be less by rounding, which a picture refuses.
    return np.maximum([values - lows, highs - values], 0.0)


def _natural_order(text: str) -> tuple[str | int, ...]:
    """Return what texts are sorted by so that client 2 comes before client 10."""
    parts = re.split(r"([0-9]+)", text)  # Texts at even places, numbers at odd ones.
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts))


def _place(member: Member, column: str) -> tuple[Any, ...]:
    """Return what members are sorted by: the largest value of a column first, none or NaN last."""
    if column == "name":
        return _natural_order(member.label), member.client_id
    value = getattr(member, column)
    if value is None or math.isnan(value):
        return True, 0.0, member.client_id
    return False, -value, member.client_id
