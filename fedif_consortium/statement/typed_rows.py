"""Reads a run's tables with the types of their values; errors name file, line and column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from fedif_consortium.evidence.signed import first_error
from fedif_flower.errors import ConfigError
from fedif_flower.run.presence import Presence
from fedif_flower.run.record_files import Table
from fedif_flower.run.rows import Line, read_table

_WHOLE_NUMBER = re.compile(r"-?[0-9]+(\.0)?")  # A partition that is not known is -1.
_Row = TypeVar("_Row")


def parse_rows(
    table: Table, kind: type[_Row], lists: Mapping[str, str] = MappingProxyType({})
) -> tuple[_Row, ...]:
    """Return the lines of a table as objects of the class ``kind``.

    ``lists`` has the attributes that are made of several columns, with the beginning of the names
    of these columns.

    Raises
    ------
    ConfigError
        If a line is not as it should be. The message names it.
    """
    rows: list[dict[str, Any]] = []
    for line in table.read():
        row: dict[str, Any] = {column: value for column, value in line.items() if value}
        for name, start in lists.items():
            cells = {column: value for column, value in line.items() if column.startswith(start)}
            row[name] = [value for value in cells.values() if value]
            # With a gap, later columns would be taken for earlier ones.
            if row[name] and len(row[name]) < len(cells):
                gap = list(cells.values()).index("")
                where = f"{table.path}, line {len(rows) + 2}"
                raise ConfigError(f"{where}: {list(cells)[gap]} is empty, and others are not")
        rows.append(row)
    try:
        return TypeAdapter(tuple[kind, ...]).validate_python(rows)  # type: ignore[valid-type]
    except ValidationError as error:
        index, _, wrong = first_error(error).partition(".")
        raise ConfigError(f"{table.path}, line {int(index) + 2}: {wrong}") from error


def typed_lines(table: Table, whole_numbers: Sequence[str]) -> list[Line]:
    """Return the lines of a table with the types of its values; empty without a file.

    ``whole_numbers`` are columns that hold a whole number in each line. Others may not be there:
    later versions have added columns.

    Raises
    ------
    ConfigError
        If such a column is missing, or one of its cells is no whole number. The message names both.
    """
    content = read_table(table.path, more=True)
    if not content.num_rows:
        return []
    for column in whole_numbers:
        if column not in content.column_names:
            raise ConfigError(f"{table.path} has no column {column!r}")
        for number, value in enumerate(content[column].to_pylist(), start=2):
            # One cell that is no number makes texts of all the others.
            if not _WHOLE_NUMBER.fullmatch(str(value)):
                raise refused_cell(table, number, column, value, "an integer")
    lines: list[Line] = content.to_pylist()
    # 3 and 3.0 are the same number; where one cell of a column ends with .0, all are read so.
    return [{**line, **{column: int(line[column]) for column in whole_numbers}} for line in lines]


def attendance_lines(table: Table) -> list[Line]:
    """Return the lines of ``attendance.csv``.

    Raises
    ------
    ConfigError
        If a line is not as it should be. The message names it.
    """
    lines = typed_lines(table, ("round", "partition_id", "client_id"))
    words = get_args(Presence)
    for number, line in enumerate(lines, start=2):
        presence = line.get("presence")
        if presence not in words:
            raise refused_cell(table, number, "presence", presence, ", ".join(words))
    return lines


def refused_cell(
    table: Table, number: int, column: str, value: object, allowed: str
) -> ConfigError:
    """Return the error that names a cell of a table by its line and column."""
    return ConfigError(f"{table.path}, line {number}: {column} = {value!r:.80}; allowed: {allowed}")
