"""A run's tables as CSV files: how cells are written, and how tables are read."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import regular

Line = Mapping[str, Any]  # A line of a table: its values by column.
# The columns that hold texts.
_TEXTS = ("status", "rejection", "note", "reason", "losses", "presence", "at", "name")
_NONE: Mapping[str, Any] = MappingProxyType({})
# A spreadsheet takes a text that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def read_table(path: Path, types: Mapping[str, Any] = _NONE, *, more: bool = False) -> Any:
    """Return the lines of a table as a ``pyarrow.Table``.

    A run may be writing the table: a last line that is only half there is left out. Texts come
    without the apostrophe that :func:`cell` puts before some.

    Parameters
    ----------
    path : Path
        The file; if it is not there, the result has no lines.
    types : mapping of str to type
        The types of columns, by name. Only these columns are read; one that the file lacks is
        empty.
    more : bool
        Read all columns of the file instead, and add none that it lacks.

    Raises
    ------
    ConfigError
        If a whole line has fewer or more cells than the table has columns, a cell is not of its
        column's type, or the file cannot be read.
    """
    import pyarrow as pa  # Imported here: clients and commands should not wait for it.
    import pyarrow.csv as pa_csv

    # pyarrow would guess a wrong type for ids that need 64 bits, and texts that look like numbers.
    column_types = {"client_id": pa.uint64(), **dict.fromkeys(_TEXTS, pa.string()), **types}
    conversion = pa_csv.ConvertOptions(
        column_types=column_types, null_values=[""], strings_can_be_null=True
    )
    if not more:
        conversion.include_columns = list(types)
        conversion.include_missing_columns = True
    try:
        content = _whole_lines(path)
        if not content:
            return pa.schema(types).empty_table()
        # pyarrow gets a copy in memory of its own, since one of its threads may hold what it reads
        # for some ms longer. If that memory were Python's, and Python ended meanwhile, the process
        # would abort (apache/arrow#34314).
        copy = pa.BufferOutputStream()
        copy.write(content)
        table = pa_csv.read_csv(pa.BufferReader(copy.getvalue()), convert_options=conversion)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return _with_texts_as_they_were(table)


def _with_texts_as_they_were(table: Any) -> Any:
    """Return a ``pyarrow.Table`` in which each text is as :func:`text_in` returns it."""
    import pyarrow.compute as pc

    signs = re.escape("".join(_FORMULA))
    for place, name in enumerate(table.column_names):
        if name in _TEXTS:
            texts = pc.replace_substring_regex(table[name], f"^'('*[{signs}])", r"\1")
            table = table.set_column(place, name, texts)
    return table


def _whole_lines(path: Path) -> bytes:
    """Return a file's content up to its last line break; empty if there is no file."""
    if not path.is_file():
        return b""
    with open(path, "rb", opener=regular) as file:
        content = file.read()
    return content[: content.rfind(b"\n") + 1]


def read_rows(path: Path, rest: str | None = None, *, ended: bool = False) -> list[dict[str, str]]:
    """Return the lines of a CSV file; a last line that was cut off by a crash is left out.

    Parameters
    ----------
    path : Path
        The file; if it is not there, there are no lines.
    rest : str, optional
        The value of cells that a line lacks at its end. With a value, a line may also have more
        cells than there are columns: they are a list under the key ``None``. ``None``: every line
        needs as many cells as there are columns.
    ended : bool
        Whether the file was written with a line break at the end of each line. If so, a last line
        without a line break was cut off, since a part of its last cell may be missing. If not, such
        a line was cut off only if it lacks a cell.

    Raises
    ------
    ConfigError
        If any other line has fewer or more cells than there are columns, or the first line names a
        column twice; the error names the line.
    """
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8-sig", opener=regular) as file:
        text = file.read()
    reader = csv.DictReader(StringIO(text, newline=""), restval=rest)
    rows = list(reader)
    for column, count in Counter(reader.fieldnames or ()).items():
        if count > 1:
            raise ConfigError(f"{path}, line 1: the column {column!r} is there {count} times")
    is_whole = text.endswith(("\n", "\r"))
    if rows and not is_whole and (ended or None in rows[-1].values()):
        rows.pop()  # The last line was cut off.
    for number, row in enumerate(rows, start=2):
        if None in row.values():
            raise ConfigError(f"{path}, line {number}: fewer cells than columns")
        if rest is None and None in row:
            raise ConfigError(f"{path}, line {number}: more cells than columns")
    return rows


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as the lines of a CSV file."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(map(cell, row))
    return text.getvalue()


def text_of_cells(rows: Iterable[Iterable[str]]) -> str:
    """Return cells that were read from a CSV file as its lines again, unchanged.

    :func:`csv_text` would change some: read as a text, the number -1 looks like a formula.
    """
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def cell(value: object) -> object:
    """Return a value as a CSV file holds it: a text like a formula gets an apostrophe in front.

    So does such a text behind apostrophes of its own: :func:`text_in` takes one of them off.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    # The text may be a client's: a spreadsheet must not take it for a formula.
    if isinstance(value, str) and value.lstrip("'").startswith(_FORMULA):
        return "'" + value
    return value


def text_in(written: str) -> str:
    """Return the text of a cell, without the apostrophe that :func:`cell` puts before some."""
    text = written.removeprefix("'")
    if text.lstrip("'").startswith(_FORMULA):
        return text
    return written
