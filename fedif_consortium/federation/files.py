"""Files that a command makes: it says each in a line, and keeps what is there. And small TOML."""

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

MOST_BYTES = 2**16
_Document = TypeVar("_Document", bound=Settings)


def secret(path: Path, public: Path, purpose: str, make: Callable[[], bytes]) -> None:
    """Make a private key's file, for its owner alone, unless there is one, or it was lost.

    Where ``public`` is there, which is made of the key, the key was lost.
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


def new(path: Path, purpose: str, content: bytes | str) -> None:
    """Write a file unless there is one."""
    if path.exists():
        typer.echo(f"kept {path}")
    else:
        write(path, purpose, content)


def write(path: Path, purpose: str, content: bytes | str) -> None:
    """Write a file that may be there with other content."""
    storage.make_folder(path.parent)
    storage.write_atomically(path, content, 0o644)
    typer.echo(f"wrote {path}: {purpose}")


def private_folder(path: Path) -> None:
    """Make a folder that is its owner's alone, unless there is one."""
    with storage.writing(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def a_name(words: str) -> Any:
    """Declare the name of a federation or a member, which is also a file's name."""
    allowed = "1 to 40 of A-Z, a-z, 0-9, '.', '_' and '-', a letter or digit first"
    return setting(..., words, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$", allowed=allowed)


def a_keeper_key(words: str) -> Any:
    """Declare a keeper's public key; empty: there is no keeper."""
    pattern = r"^([0-9a-fA-F]{64})?$"
    return setting("", words, pattern=pattern, allowed="64 hexadecimal digits")


def to_toml(comment: str, values: Mapping[str, Any]) -> str:
    """Return values as TOML under a comment."""
    lines = [f"# {line}\n" for line in comment.splitlines()]
    return "".join(lines) + tomli_w.dumps(values, multiline_strings=True)


def refuse_changes(path: Path, different: Collection[str]) -> None:
    """Raise ConfigError where a file's settings, which stay as they are, are not those given.

    Parameters
    ----------
    path : Path
        The file.
    different : collection of str
        The keys in which it says otherwise.
    """
    if different:
        raise ConfigError(f"{path} is there and says otherwise ({enumerated(different)}): edit it")


def read_document(path: Path, kind: type[_Document], otherwise: str = "") -> _Document:
    """Read a TOML file with the settings of a class.

    Raises
    ------
    ConfigError
        Naming the file, the key, and what is allowed; or, if there is no file, what to do.
    """
    if otherwise and not path.is_file():
        raise ConfigError(f"{path.parent} has no {path.name}: {otherwise}")
    content = read_toml(path, MOST_BYTES)
    try:
        require_known(kind, content)
        return kind(**content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
