"""Small TOML files that people read and send to each other: written here, and read with doubt."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedif_flower.errors import ConfigError
from fedif_flower.settings import Settings

MOST_BYTES = 2**16
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"  # Of a federation or a member: also a file's name.
NAME_ALLOWED = "1 to 40 of A-Z, a-z, 0-9, '.', '_' and '-', a letter or digit first"
_Document = TypeVar("_Document", bound=Settings)


def to_toml(comment: str, values: Mapping[str, object]) -> str:
    """Return values as TOML under a comment; a mapping among them becomes a table at the end."""
    lines = [f"# {line}" for line in comment.splitlines()]
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    lines += [f"{key} = {_value(v)}" for key, v in values.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, str) and value.startswith("-----BEGIN "):
        return f'"""\n{value}"""'  # PEM: its own lines.
    # Of text, numbers, truth values and lists, TOML writes as JSON does.
    return json.dumps(value, ensure_ascii=False)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file that somebody else may have written.

    Raises
    ------
    ConfigError
        If it cannot be read, is too long, or is no TOML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"{path} is longer than {MOST_BYTES} bytes")
        return tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: {reason}") from error


def read_document(path: Path, kind: type[_Document]) -> _Document:
    """Read a TOML file with the settings of a class.

    Raises
    ------
    ConfigError
        Naming the file, the key, and what is allowed.
    """
    try:
        return kind(**read_toml(path))
    except ConfigError as error:
        named = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise ConfigError(named) from error
