"""A run's tables as files: how cells are written, and the reader that everybody shares."""

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

Line = Mapping[str, Any]  # Of a table: values by column.
_TEXTS = ("status", "rejection", "note", "reason", "losses", "presence", "at", "name")
_NONE: Mapping[str, Any] = MappingProxyType({})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # A spreadsheet takes a text that begins so for one.


def read_table(path: Path, types: Mapping[str, Any] = _NONE, *, more: bool = False) -> Any:
    """Return the whole lines of a table that a run may be writing, as a ``pyarrow.Table``.

    A last line may be half there. A column of ``types`` that is not there is empty; ``more``: all
    columns of the file are read, and none is added. Texts are without the sign that :func:`cell`
    puts before some.

    Raises
    ------
    ConfigError
        If a whole line has fewer or more cells than the table has columns, a cell is not of its
        column's type, or the file cannot be read.
    """
    import pyarrow as pa  # which clients and command lines should not have to wait for
    import pyarrow.csv as pa_csv

    # Else a column of ids that need 64 bits, or of texts that look like numbers, is guessed wrong.
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
        # A thread of pyarrow's may hold what it reads for some ms longer. If that were Python's,
        # and Python came to its end meanwhile, the process would abort (apache/arrow#34314).
        copy = pa.BufferOutputStream()
        copy.write(content)
        table = pa_csv.read_csv(pa.BufferReader(copy.getvalue()), convert_options=conversion)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return _with_texts_as_they_were(table)


def _with_texts_as_they_were(table: Any) -> Any:
    """Return a ``pyarrow.Table`` with :func:`text_in` of each text."""
    import pyarrow.compute as pc

    signs = re.escape("".join(_FORMULA))
    for place, name in enumerate(table.column_names):
        if name in _TEXTS:
            texts = pc.replace_substring_regex(table[name], f"^'([{signs}])", r"\1")
            table = table.set_column(place, name, texts)
    return table


def _whole_lines(path: Path) -> bytes:
    """Return a file up to its last line end; empty where there is none."""
    if not path.is_file():
        return b""
    with open(path, "rb", opener=regular) as file:
        content = file.read()
    return content[: content.rfind(b"\n") + 1]


def read_rows(path: Path, rest: str | None = None, *, ended: bool = False) -> list[dict[str, str]]:
    """Return the lines of a CSV file; a last one that was cut off by a crash is left out.

    ``rest``, if it is given, stands for the cells that a line lacks, wherever it is. A last line
    without an end was cut off where it lacks a cell; with ``ended``, of a file each of whose lines
    is written with its end, in any case: of its last cell a part may be missing.

    Raises
    ------
    ConfigError
        Naming the line, if any other one has fewer or more cells than the table has columns, or
        the first one names a column twice.
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
        rows.pop()  # It was cut off.
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
    """Return cells as they were read as the lines of a CSV file, each as it was written.

    In text the number -1 cannot be told from a word: :func:`csv_text` would put a sign before it.
    """
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def cell(value: object) -> object:
    """Return a value as a CSV file holds it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    # A client may have written it.
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value


def text_in(written: str) -> str:
    """Return the text of a cell, without the sign that :func:`cell` puts before some."""
    text = written.removeprefix("'")
    if text.startswith(_FORMULA):
        return text
    return written
