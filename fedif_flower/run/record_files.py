"""How a run's records are written and read: JSON objects, and tables that grow."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import parse_json, read_whole
from fedif_flower.run.rows import csv_text, read_rows, text_of_cells
from fedif_flower.storage import write_atomically, writing


class JsonFile:
    """A JSON object in a file, written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the file."""
        write_atomically(self.path, json.dumps(content, indent=2) + "\n")

    def read(self) -> dict[str, Any]:
        """Return the object.

        Raises
        ------
        FileNotFoundError
            If there is no file.
        ConfigError
            If it holds no JSON object.
        """
        try:
            content = parse_json(read_whole(self.path))
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path} is no JSON object: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{self.path} is no JSON object")
        return content

    def read_if_there(self) -> dict[str, Any]:
        """Return the object; an empty one if there is no file."""
        if not self.path.is_file():
            return {}
        return self.read()


class Table:
    """A CSV file that grows by whole lines; a last line cut off by a crash is not read.

    Parameters
    ----------
    path : Path
        The file.
    columns : iterable of str
        The columns that the table always has.
    """

    def __init__(self, path: Path, columns: Iterable[str]) -> None:
        self.path = path
        self.columns = tuple(columns)
        self._columns = self.columns  # With the columns that a run adds.

    @property
    def name(self) -> str:
        """What checkpoints and commands call the table: the file's name without its ending."""
        return self.path.stem

    def begin(self, more: Iterable[str] = ()) -> None:
        """Replace the file by a header; ``more`` are columns that this run adds at its end."""
        self._columns = (*self.columns, *more)
        self.replace(())

    def append(self, lines: Iterable[Mapping[str, object]]) -> None:
        """Add lines, each given as values by column; a cell without a value is empty."""
        with writing(self.path), self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(self._text(lines))

    def replace(self, lines: Iterable[Mapping[str, object]]) -> None:
        """Write header and lines, whole or not at all."""
        write_atomically(self.path, csv_text([self._columns]) + self._text(lines))

    def keep(self, is_kept: Callable[[Mapping[str, str]], bool]) -> None:
        """Keep only the lines for which ``is_kept`` is true; these stay as they were written."""
        lines = [line for line in self.read() if is_kept(line)]
        write_atomically(self.path, self._text_as_read(lines))

    def replace_last(self, line: Mapping[str, object]) -> None:
        """Replace the last line by another; all others stay as they were written."""
        write_atomically(self.path, self._text_as_read(self.read()[:-1]) + self._text([line]))

    def _text_as_read(self, lines: Iterable[Mapping[str, str]]) -> str:
        """Return the text of a file with the header and lines that were read, unchanged."""
        cells = [[line.get(name, "") for name in self._columns] for line in lines]
        return csv_text([self._columns]) + text_of_cells(cells)

    def _text(self, lines: Iterable[Mapping[str, object]]) -> str:
        """Return the text of lines in a CSV file."""
        columns = self._columns
        return csv_text([line.get(name) for name in columns] for line in lines)

    def header(self) -> list[str]:
        """Return the names of the columns in the file; none if it is not there, or empty."""
        if not self.path.is_file():
            return []
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            return next(csv.reader(file), [])

    def read(self, rest: str | None = None, *, ended: bool = True) -> list[dict[str, str]]:
        """Return the lines, each as texts by column; none if there is no file.

        ``rest`` and ``ended`` are as in :func:`~fedif_flower.run.rows.read_rows`. A run ends every
        line of its tables by a line break; a person who writes a table may leave out the last one.

        Raises
        ------
        ConfigError
            If the file is no CSV file, or a line of it is not whole.
        """
        try:
            return read_rows(self.path, rest, ended=ended)
        except (csv.Error, OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from error
