"""What somebody else wrote: read of regular files alone and with bounds, shown as plain text."""

from __future__ import annotations

import errno
import json
import os
import stat
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedif_flower.errors import ConfigError, FedIFError

MOST_BYTES = 64 * 2**20  # Of a file that is read whole.
MOST_DEPTH = 64  # Of objects and lists within each other.
_TOO_DEEP = f"more than {MOST_DEPTH} objects or lists within each other"


def regular(path: str, flags: int) -> int:
    """Open a file, for ``open(..., opener=regular)``.

    Raises
    ------
    OSError
        If it is a pipe, a device or a folder: reading these may never end.
    """
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return descriptor


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises
    ------
    OSError
        If it is none, has more than ``most`` bytes, or cannot be read.
    """
    with open(path, "rb", opener=regular) as file:  # Path.open takes no opener
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def require_plain_archive(path: Path) -> None:
    """Raise ValueError if a ZIP archive would unpack to more than the file has.

    NumPy's ``savez`` and PyTorch's ``save`` pack nothing, so what is packed is not theirs: a
    kilobyte may stand for a gigabyte. A file of another kind passes.

    Raises
    ------
    OSError
        If it is no regular file, or cannot be read.
    """
    with open(path, "rb", opener=regular) as file:  # Path.open takes no opener
        if not zipfile.is_zipfile(file):
            return
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        packed = os.fstat(file.fileno()).st_size
    if unpacked > packed:
        raise ValueError(f"it has {packed} bytes and would unpack to {unpacked}")


def parse_json(content: bytes | str) -> Any:
    """Return what a JSON text says.

    Raises
    ------
    ValueError
        If it is none, an object has a key twice, a text holds half of a surrogate pair, or it is
        nested deeper than 64.
    """
    text = content if isinstance(content, str) else content.decode()
    try:
        value = json.loads(text, object_pairs_hook=_each_key_once)
        _require_plain(value)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return value


def read_toml(path: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return what a TOML file says.

    Raises
    ------
    ConfigError
        If it cannot be read, has more than ``most`` bytes, is no TOML, or is nested deeper than
        64.
    """
    try:
        text = read_whole(path, most).decode("utf-8-sig")
        content = tomllib.loads(text)
        _require_plain(content)
    except RecursionError:
        raise ConfigError(f"{path}: {_TOO_DEEP}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    return content


@contextmanager
def refused_as(kind: type[FedIFError], what: str) -> Iterator[None]:
    """Turn whatever goes wrong with values that somebody else wrote into one sentence.

    Raises
    ------
    FedIFError
        Of this kind, ``what`` first; those that are raised inside stay as they are.
    """
    try:
        yield
    except FedIFError:
        raise
    except Exception as error:  # An OverflowError of 1e308, a KeyError of what is not there ...
        # Only the text of an OSError names the file.
        words = str(error) if isinstance(error, OSError) else repr(error)
        raise kind(f"{what}: {' '.join(words.split()):.200}") from error


def visible(text: str) -> str:
    """Return a text with ``"?"`` for whatever a terminal obeys in place of showing it.

    That is line breaks, escape sequences, marks that turn the direction of writing and halves of
    surrogate pairs.
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"the key {key!r:.80} is there twice")
        content[key] = value
    return content


def _require_plain(value: Any) -> None:
    """Raise ValueError unless recursive code can walk through a value, and write its texts."""
    # Level by level, since a recursion would itself be too deep.
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        next_level: list[Any] = []
        for item in level:
            if isinstance(item, str):
                item.encode()  # Half of a surrogate pair is a ValueError.
            elif isinstance(item, dict):
                next_level += item.keys()
                next_level += item.values()
            elif isinstance(item, list):
                next_level += item
        if not next_level:
            return
        level = next_level
    raise ValueError(_TOO_DEEP)
