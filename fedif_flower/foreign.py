"""Reading and showing what somebody else wrote: regular files only, bounded, as plain text."""

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

MOST_BYTES = 64 * 2**20  # The largest file that is read.
MOST_DEPTH = 64  # The most objects and lists within each other.
_TOO_DEEP = f"objects or lists are nested deeper than {MOST_DEPTH} levels"


def regular(path: str, flags: int) -> int:
    """Open a regular file and return its descriptor, for ``open(..., opener=regular)``.

    Raises
    ------
    OSError
        If it is a pipe, a device or a folder, which could be read forever; or cannot be opened.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
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
        If the file is not regular, has more than ``most`` bytes, or cannot be read.
    """
    with open(path, "rb", opener=regular) as file:  # Path.open takes no opener
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def require_plain_archive(path: Path) -> None:
    """Raise ValueError if a ZIP archive would unpack to more bytes than the file has.

    NumPy's ``savez`` and PyTorch's ``save`` do not compress. A compressed archive was not written
    by them, and a kilobyte of it may stand for a gigabyte. A file of another format passes.

    Raises
    ------
    ValueError
        If the archive is compressed.
    OSError
        If the file is not regular, or cannot be read.
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
    """Return the value of a JSON text, whose numbers may be NaN or infinite.

    Raises
    ------
    ValueError
        If the text is no JSON, if an object has a key twice, if a string holds half of a surrogate
        pair, or if the value is nested deeper than 64 levels.
    """
    text = content if isinstance(content, str) else content.decode()
    try:
        value = json.loads(text, object_pairs_hook=_each_key_once)
        _require_plain(value)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return value


def read_toml(path: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises
    ------
    ConfigError
        If the file cannot be read, has more than ``most`` bytes, is no TOML, or is nested deeper
        than 64 levels.
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
    """Turn any error within the context into an error of one sentence.

    It is for code that works with values that somebody else wrote, which may be anything.

    Parameters
    ----------
    kind : type of FedIFError
        The class of the error to raise.
    what : str
        What its message begins with.

    Raises
    ------
    FedIFError
        One of class ``kind`` in the place of any error; but an error that is a FedIFError already
        is raised as it is.
    """
    try:
        yield
    except FedIFError:
        raise
    except Exception as error:  # Such as an OverflowError from 1e308, or a KeyError.
        # The text of an OSError names the file; its repr does not.
        words = str(error) if isinstance(error, OSError) else repr(error)
        raise kind(f"{what}: {' '.join(words.split()):.200}") from error


def visible(text: str) -> str:
    """Return a text with ``"?"`` in place of each character that a terminal would not just show.

    Such characters are line breaks, escape sequences, marks that turn the direction of writing and
    halves of surrogate pairs.
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict; raise ValueError if a key occurs twice."""
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"the key {key!r:.80} is there twice")
        content[key] = value
    return content


def _require_encodable(text: str) -> None:
    """Raise ValueError, which shows the text, if it holds half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"half of a surrogate pair in {text!a:.80}") from None


def _require_plain(value: Any) -> None:
    """Raise ValueError if a value is nested too deep, or holds a string that cannot be encoded."""
    # Level by level: recursive code could itself run into the limit of the recursion.
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        next_level: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _require_encodable(item)
            elif isinstance(item, dict):
                next_level += item.keys()
                next_level += item.values()
            elif isinstance(item, list):
                next_level += item
        if not next_level:
            return
        level = next_level
    raise ValueError(_TOO_DEEP)
