"""A run's folder as an object."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedif_flower.attribution.table import BLOCK_COLUMN, BLOCKS_KEY
from fedif_flower.errors import ConfigError, require
from fedif_flower.foreign import refused_as, visible
from fedif_flower.run.completeness import Completeness, completeness
from fedif_flower.run.config import subject_of
from fedif_flower.run.contributions import UNKNOWN, Contribution, contributions_of
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.member import Member, sort_key
from fedif_flower.run.member_pictures import bar_column, plot_bars, series_of_rounds
from fedif_flower.run.plots import plot_rounds
from fedif_flower.run.rows import Line, read_table
from fedif_flower.tables import ResultTable, decimals_for, shown_number

if TYPE_CHECKING:
    from pandas import DataFrame

UNFINISHED = "unfinished"  # It goes on, or was stopped: its completeness is not known yet.
TABLES = ("members", "rounds", "clients", "attendance", "attribution")
DRAWN = ("members", "rounds")


class Attributed(NamedTuple):
    """Lines of a run's contributions: ``attribution_rounds.csv``, and ``attribution.csv``."""

    rounds: list[Line]
    parts: list[Line]


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
        tables = {
            "rounds": self.folder.rounds,
            "clients": self.folder.clients,
            "attendance": self.folder.attendance,
            "attribution": self.folder.attribution,
        }
        lines: list[Line] = read_table(tables[table].path, more=True).to_pylist()
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
                members.append(_member(name, lines, contributions.get(client_id, UNKNOWN)))
            column = "weight_score"
            if contributions:
                column = "contribution"
            return tuple(sorted(members, key=lambda member: sort_key(member, column)))

    def sort(self, by: str) -> tuple[Member, ...]:
        """Return the members in the order of a column, the largest first; texts from A on.

        Raises
        ------
        ConfigError
            If there is no such column.
        """
        columns = [field.name for field in fields(Member)]
        require(by in columns, "sort", by, ", ".join(columns))
        return tuple(sorted(self.members, key=lambda member: sort_key(member, by)))

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
        picture = Path(path)
        if of == "rounds":
            lines = self.lines_of_complete_rounds()
            series = series_of_rounds(lines)
            if not series:
                raise ConfigError(f"{self.name}: neither influences nor weights to draw")
            members = {
                member.client_id: (member.label, member.malicious) for member in self.members
            }
            plot_rounds(series, members, self.last_round, picture, title=self.title)
            return picture
        if bar_column(self.members) is None:
            raise ConfigError(f"{self.name}: neither contributions nor weight scores to draw")
        plot_bars(self.members, picture, title=self.title, interval=self.interval)
        return picture

    @cached_property
    def attributed(self) -> Attributed:
        """What each round gained, and each client's part of it; rounds that are complete."""
        rounds = read_table(self.folder.attributed_rounds.path, more=True).to_pylist()
        # A round's own line is written last: where there is one, its clients' lines are complete.
        complete = {row["round"] for row in rounds}
        columns = {"round": "int64", "client_id": "uint64", "contribution": "double"}
        for column in self._blocks:
            columns[column] = "double"
        parts = read_table(self.folder.attribution.path, columns).to_pylist()
        return Attributed(rounds, [row for row in parts if row["round"] in complete])

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
        for row in self.attributed.parts:
            if any(row[column] is None for column in self._blocks):
                return False
        return True

    @property
    def interval(self) -> str:
        """What members' intervals are about: other held-out examples, or luck of the rounds."""
        if self._is_split:
            return "95 %, other held-out set"
        return "95 %, other rounds"

    def _contributions(self) -> dict[int, Contribution]:
        """Return each member's contribution over the run, and the ends of its interval."""
        blocks = {}
        if self._is_split:
            blocks = self._blocks
        return contributions_of(self.attributed.rounds, self.attributed.parts, blocks)


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


def _member(name: str, lines: Sequence[Line], contribution: Contribution) -> Member:
    """Return what became of a member, from its lines of ``clients.csv``."""
    status = Counter(line["status"] for line in lines)
    weight_score = None
    for line in lines:
        if line["weight_score"] is not None:
            weight_score = line["weight_score"]
    latest = lines[-1]
    return Member(
        client_id=latest["client_id"],
        partition_id=latest["partition_id"],
        name=name,
        accepted=status["accepted"],
        refused=status["refused"],
        failed=status["failed"],
        away=status["away"] + status["revoked"],
        contribution=contribution.total,
        low=contribution.low,
        high=contribution.high,
        weight_score=weight_score,
        weight=math.fsum(line["weight"] or 0.0 for line in lines),
        malicious=bool(latest["malicious"]),
    )


def _form_of(members: Sequence[Member], column: str) -> str:
    """Return the format in which a column's values can be told apart, however small they are."""
    known = []
    for member in members:
        value = getattr(member, column)
        if value is not None:
            known.append(value)
    decimals = decimals_for(known)
    return f".{decimals}f"


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
