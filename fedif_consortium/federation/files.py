"""Helpers for commands that make files: each file is reported in a line, and existing ones stay.

Also helpers for small files in TOML.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
import typer

from fedif_flower import storage
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_toml
from fedif_flower.settings import Settings, require_known, setting
from fedif_flower.words import enumerated

MOST_BYTES = 2**16  # The largest TOML file that is read.
_Document = TypeVar("_Document", bound=Settings)


def write_secret(path: Path, public: Path, purpose: str, make: Callable[[], bytes]) -> None:
    """Write a new private key's file, which only its owner can read, unless it exists.

    Parameters
    ----------
    path : Path
        The file of the private key.
    public : Path
        A file that is made from the key. If it exists and the key does not, the key was lost.
    purpose : str
        What the key is for, to be shown.
    make : callable
        Returns the content of a new key's file.

    Raises
    ------
    ConfigError
        If the key was lost, or other users may read it.
    StorageError
        If the file cannot be written.
    """
    if path.exists():
        storage.require_private(path, "the key")
        typer.echo(f"kept {path}")
    elif public.exists():
        raise ConfigError(
            f"{public} is there, but {path.name} is not: restore it from a backup, or move "
            f"{public.name} away too"
        )
    else:
        storage.write_private(path, make())
        typer.echo(f"made {path}, secret: {purpose}")


def write_new(path: Path, purpose: str, content: bytes | str) -> None:
    """Write a file unless it exists; ``purpose`` is what is shown about it."""
    if path.exists():
        typer.echo(f"kept {path}")
    else:
        write(path, purpose, content)


def write(path: Path, purpose: str, content: bytes | str) -> None:
    """Write a file, also over an existing one; ``purpose`` is what is shown about it."""
    storage.make_folder(path.parent)
    storage.write_atomically(path, content, 0o644)
    typer.echo(f"wrote {path}: {purpose}")


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter, unless it exists."""
    with storage.writing(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def a_name(words: str) -> Any:
    """Declare a setting: the name of a federation or a member, which is also a file's name."""
    allowed = "1 to 40 of A-Z, a-z, 0-9, '.', '_' and '-', a letter or digit first"
    return setting(..., words, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$", allowed=allowed)


def a_keeper_key(words: str) -> Any:
    """Declare a setting: a keeper's public key; empty: there is no keeper."""
    pattern = r"^([0-9a-fA-F]{64})?$"
    return setting("", words, pattern=pattern, allowed="64 hexadecimal digits")


def to_toml(comment: str, values: Mapping[str, Any]) -> str:
    """Return values as TOML, with a comment above."""
    lines = [f"# {line}\n" for line in comment.splitlines()]
    return "".join(lines) + tomli_w.dumps(values, multiline_strings=True)


def refuse_changes(path: Path, different: Collection[str]) -> None:
    """Raise ConfigError if a file's settings, which stay as they are, differ from those given.

    Parameters
    ----------
    path : Path
        The file.
    different : collection of str
        The keys whose values differ; empty: none.
    """
    if different:
        raise ConfigError(
            f"{path} has other values of {enumerated(different)}: edit it, or give the values that "
            "it has"
        )


def read_document(path: Path, kind: type[_Document], otherwise: str = "") -> _Document:
    """Return the settings in a TOML file.

    Parameters
    ----------
    path : Path
        The file.
    kind : type
        The class of settings.
    otherwise : str
        What to do if there is no file, for the error message.

    Raises
    ------
    ConfigError
        If there is no file, or a key or a value is not allowed. The message names the file, the
        key, and what is allowed.
    """
    if otherwise and not path.is_file():
        raise ConfigError(f"{path.parent} has no {path.name}: {otherwise}")
    content = read_toml(path, MOST_BYTES)
    try:
        require_known(kind, content)
        return kind(**content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
