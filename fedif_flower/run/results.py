"""What a run left in its folder, as an object: tables, figures and pictures."""

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

UNFINISHED = "unfinished"  # The run goes on or was stopped: it has no verdict yet.
TABLES = ("members", "rounds", "clients", "attendance", "attribution")
DRAWN = ("members", "rounds")


class Attributed(NamedTuple):
    """A run's contributions: the lines of ``attribution_rounds.csv`` and ``attribution.csv``."""

    rounds: list[Line]
    parts: list[Line]


class Run:
    """What a run left in its folder, whether it is complete, was stopped or goes on.

    Parameters
    ----------
    path : str or Path
        The run's folder.

    Attributes
    ----------
    folder : RunFolder
        The files of the run.
    config, summary : mapping
        Its run config and its figures; empty if there are none. A run that a ``RunWriter`` wrote
        has no run config.

    Raises
    ------
    ConfigError
        If the folder holds no run.
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
        """Strategy, data and attack; without a run config, the report's title or folder's name."""
        if self.config:
            return run_title(self.config)
        return str(self.summary.get("title") or self.name)

    @property
    def state(self) -> str:
        """How complete the run is, as its report says; before its end it is ``"unfinished"``."""
        if not self.summary:
            return UNFINISHED
        return self.completeness.verdict

    def __repr__(self) -> str:
        """Return folder, title, number of rounds and state."""
        where = repr(str(self.folder.path))
        last_round = self.last_round  # Read once: it reads the table of rounds.
        rounds = "1 round" if last_round == 1 else f"{last_round} rounds"
        return f"Run({where}: {visible(self.title)}, {rounds}, {self.state})"

    @property
    def last_round(self) -> int:
        """The last round that is complete; 0: there is none."""
        return max((line["round"] for line in self.lines("rounds")), default=0)

    def lines(self, table: str = "members") -> list[Line]:
        """Return a table's lines, each as values by column; numbers are numbers.

        Parameters
        ----------
        table : {"members", "rounds", "clients", "attendance", "attribution"}
            The table: a line for each member; for each round; for each client in a round; for each
            time that a member came, left or was paused; for each client's contribution to a round.

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
        """Return the lines of ``clients.csv`` whose rounds are complete.

        A round is complete once it has a line in ``rounds.csv``, which is written last.
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
        from pandas import DataFrame  # Imported here: nothing else needs pandas.

        return DataFrame(self.lines(table))

    @cached_property
    def names(self) -> dict[int, str]:
        """What the operator calls members, by client id."""
        lines = read_table(self.folder.names.path, more=True).to_pylist()
        return {line["client_id"]: line["name"] for line in lines}

    @cached_property
    def completeness(self) -> Completeness:
        """How complete the run is, judged by its complete rounds."""
        last = self.last_round  # Read once: it reads the table of rounds.
        attendance = [line for line in self.lines("attendance") if line["round"] <= last]
        return completeness(
            self.lines("rounds"),
            self.lines_of_complete_rounds(),
            attendance,
            self.names,
            self._settings,
        )

    @property
    def _settings(self) -> Mapping[str, Any]:
        """The settings that are known; a run that has just begun may have written none yet."""
        try:
            return self.folder.settings()
        except FileNotFoundError:
            return {}

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """All members that were asked in a complete round.

        Those with the largest contributions come first or, in a run without contributions, those
        with the largest weight scores.
        """
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
        """Return the members sorted by a column, the largest value first; names from A on.

        Raises
        ------
        ConfigError
            If members have no such column.
        """
        columns = [field.name for field in fields(Member)]
        require(by in columns, "sort", by, ", ".join(columns))
        return tuple(sorted(self.members, key=lambda member: sort_key(member, by)))

    def table(self, by: str = "") -> ResultTable:
        """Return the members as a table, sorted by a column; empty columns are left out."""
        members = self.members
        if by:
            members = self.sort(by)
        forms = {column: _form_of(members, column) for column in ("contribution", "weight_score")}
        lines = [self._table_line(member, forms) for member in members]
        columns = _columns_with_values(lines)
        cells = [[line[column] for column in columns] for line in lines]
        return ResultTable(self.title, columns, cells, num_labels=1)

    def _table_line(self, member: Member, forms: Mapping[str, str]) -> dict[str, str]:
        """Return a member's cells by column; a dash stands for a missing value."""
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
            "weight": shown_number(member.weight, ".3f"),
            "accepted": str(member.accepted),
            "refused": str(member.refused),
            "failed": str(member.failed or "-"),
            "away": str(member.away),
        }

    def plot(self, path: str | Path, of: str = "members") -> Path:
        """Draw the members, or what each of them had in each round; return the picture's path.

        Parameters
        ----------
        path : str or Path
            The PNG file, ``*.png``.
        of : {"members", "rounds"}
            ``"members"``: what each of the first 40 members contributed, with its interval, or else
            its weight score. ``"rounds"``: the influence and the weight of each member in each
            round.

        Raises
        ------
        ConfigError
            If the run has nothing to draw, or the path does not end with ``.png``.
        """
        require(of in DRAWN, "of", of, ", ".join(DRAWN))
        # The file is a PNG whatever its name: another ending would mislead programs that read it.
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
        """What each complete round gained, and each client's part of it."""
        rounds = read_table(self.folder.attributed_rounds.path, more=True).to_pylist()
        # A round's own line is written last: if it is there, its clients' lines are complete.
        complete = {row["round"] for row in rounds}
        columns = {"round": "int64", "client_id": "uint64", "contribution": "double"}
        for column in self._blocks:
            columns[column] = "double"
        parts = read_table(self.folder.attribution.path, columns).to_pylist()
        return Attributed(rounds, [row for row in parts if row["round"] in complete])

    @cached_property
    def _blocks(self) -> dict[str, float]:
        """Each block's part of the held-out examples, by the block's column of contributions."""
        weights = self.folder.provenance.read_if_there().get(BLOCKS_KEY) or []
        return {f"{BLOCK_COLUMN}{block}": weight for block, weight in enumerate(weights)}

    @cached_property
    def _is_split(self) -> bool:
        """Whether all contributions are split by blocks, which those of masked rounds are not."""
        if not self._blocks:
            return False
        for row in self.attributed.parts:
            if any(row[column] is None for column in self._blocks):
                return False
        return True

    @property
    def interval(self) -> str:
        """What members' intervals are about, in words: another held-out set, or other rounds."""
        if self._is_split:
            return "95 %, other held-out set"
        return "95 %, other rounds"

    def _contributions(self) -> dict[int, Contribution]:
        """Return each member's contribution and the ends of its interval, by client id."""
        blocks = {}
        if self._is_split:
            blocks = self._blocks
        return contributions_of(self.attributed.rounds, self.attributed.parts, blocks)


def load(path: str | Path) -> Run:
    """Return what a run left in its folder.

    Parameters
    ----------
    path : str or Path
        The run's folder; the last line that ``fedif run`` prints names the report in it.

    Raises
    ------
    ConfigError
        If the folder holds no run.
    """
    return Run(path)


def run_title(settings: Mapping[str, Any]) -> str:
    """Return what a run with these settings is called: its strategy, its data and its attack."""
    title = f"{settings.get('strategy', '?')} on {subject_of(settings)}"
    attack = settings.get("attack", "none")  # Settings that a RunWriter wrote name no attack.
    if attack != "none":
        title += f", attack: {attack}"
    return title


def _member(name: str, lines: Sequence[Line], contribution: Contribution) -> Member:
    """Return what became of a member, by its lines of ``clients.csv`` in the order of rounds."""
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
        weight=_sum_of_weights(lines),
        malicious=bool(latest["malicious"]),
    )


def _sum_of_weights(lines: Sequence[Line]) -> float | None:
    """Return the sum of a member's weights; ``None``: its updates were combined without weights."""
    weights = []
    for line in lines:
        if line["weight"] is not None:
            weights.append(line["weight"])
        elif line["status"] == "accepted":  # A rule such as the median gives no client a weight.
            return None
    return math.fsum(weights)


def _form_of(members: Sequence[Member], column: str) -> str:
    """Return the number format for a column: its largest value is shown with four digits."""
    values = []
    for member in members:
        value = getattr(member, column)
        if value is not None:
            values.append(value)
    decimals = decimals_for(values)
    return f".{decimals}f"


def _columns_with_values(lines: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the columns in which some line has a value other than a dash."""
    if not lines:
        return []
    columns = []
    for column in lines[0]:
        values = {line[column] for line in lines}
        if values != {"-"}:
            columns.append(column)
    return columns
