"""Small TOML files that people read and send to each other: written here, and read with doubt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_toml
from fedif_flower.settings import Settings, setting

MOST_BYTES = 2**16
_Document = TypeVar("_Document", bound=Settings)


def a_name(words: str) -> Any:
    """Declare the name of a federation or a member, which is also a file's name."""
    allowed = "1 to 40 of A-Z, a-z, 0-9, '.', '_' and '-', a letter or digit first"
    return setting(..., words, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$", allowed=allowed)


def an_address(words: str, default: Any = ...) -> Any:
    """Declare a host with a port."""
    return setting(default, words, pattern=r"^\S+:\d{1,5}$", allowed="HOST:PORT")


def a_keeper_key(words: str) -> Any:
    """Declare a keeper's public key; empty: there is no keeper."""
    pattern = r"^([0-9a-fA-F]{64})?$"
    return setting("", words, pattern=pattern, allowed="64 hexadecimal digits")


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


def read_document(path: Path, kind: type[_Document]) -> _Document:
    """Read a TOML file with the settings of a class.

    Raises
    ------
    ConfigError
        Naming the file, the key, and what is allowed.
    """
    try:
        return kind(**read_toml(path, MOST_BYTES))
    except ConfigError as error:
        named = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise ConfigError(named) from error


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with brackets round an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of ``host:port``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
