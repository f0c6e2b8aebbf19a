"""Files that many processes share: the cache's place, locks, and all-or-nothing writes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from filelock import FileLock

from fedif_flower.errors import ConfigError, DataError, StorageError


def cache_root() -> Path:
    """Return ``<$XDG_CACHE_HOME or ~/.cache>/fedif-flower``; it need not exist."""
    return _xdg("XDG_CACHE_HOME", "~/.cache").absolute() / "fedif-flower"


def config_folder() -> Path:
    """Return ``<$XDG_CONFIG_HOME or ~/.config>/fedif-flower``, where keys lie, not with results."""
    return _xdg("XDG_CONFIG_HOME", "~/.config") / "fedif-flower"


def _xdg(variable: str, usual: str) -> Path:
    folder = Path(os.environ.get(variable, ""))
    # The XDG specification tells programs to ignore a relative path.
    if folder.is_absolute():
        return folder
    return Path(usual).expanduser()


def content_key(content: object, digits: int = 64) -> str:
    """Return the first hex digits of the SHA-256 of a JSON-able value."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


@contextmanager
def cache_errors(root: Path) -> Iterator[None]:
    """Turn an operating system's error (disk full, read-only) into a DataError naming the cache.

    Raises
    ------
    DataError
        Instead of any OSError or StorageError.
    """
    try:
        yield
    except (OSError, StorageError) as error:
        raise DataError(
            f"cannot use the data cache in {root}: {error}; free some space there, or set "
            "XDG_CACHE_HOME to a folder that can be written"
        ) from error


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on a file; it is released even if the process is killed.

    The file stays: removing it would let two processes lock two files of the same name.

    Raises
    ------
    StorageError
        If it cannot be made.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path).acquire()
    with lock:
        yield


def temporary_sibling(path: Path) -> Path:
    """Return a fresh name in the same folder, so that a rename to ``path`` is atomic."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def remove_leftovers(path: Path) -> None:
    """Remove what :func:`temporary_sibling` named and a killed process left behind.

    The name of ``path`` may be a pattern, such as ``round-*``.
    """
    for leftover in path.parent.glob(f".{path.name}.*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def set_aside(path: Path) -> None:
    """Give what is at a path, if anything, the first free name of ``<name>-1``, ``<name>-2`` ..."""
    if not path.exists():
        return
    for number in count(1):
        free = path.with_name(f"{path.name}-{number}")
        if not free.exists():
            path.replace(free)
            return


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    _sync(path)


def _sync(path: Path) -> None:
    """Bring what a file or a folder holds to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make a folder survive a power cut, with all files and folders in it."""
    for place, _, names in os.walk(path):
        for name in names:
            _sync(Path(place) / name)
        _sync(Path(place))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system's error while a file or folder is written into one sentence.

    Raises
    ------
    StorageError
        Instead of any OSError, naming the path and the reason.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where they are not there.

    Raises
    ------
    StorageError
        If it cannot be made, naming it and the reason.
    """
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that its owner alone can read, not even for a moment others.

    Raises
    ------
    StorageError
        If it cannot be written, or is there already.
    """
    make_folder(path.parent)
    _write(path, content, 0o600, os.link)  # Unlike a rename, not over a file that is there.


def _write(path: Path, content: bytes, mode: int, place: Callable[[Path, Path], None]) -> None:
    """Write a file beside a path; have it placed there once it is whole and on the disk."""
    temporary = temporary_sibling(path)
    with writing(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            place(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)


def require_private(path: Path, name: str) -> None:
    """Raise ConfigError if others than its owner may read a file, which errors call ``name``."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigError(f"{name} = {str(path)!r}: others may read it; `chmod 600` it")


def write_atomically(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Write a whole file that survives a power cut, or leave what was there.

    Parameters
    ----------
    path : Path
        The file; its folder exists.
    content : bytes or str
        All of it; text is written as UTF-8.
    mode : int
        Who may read it, before the process's own mask; also while it is written.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    _write(path, data, mode, os.replace)


def append_line(path: Path, line: str) -> None:
    """Add a whole line to a file so that it survives a power cut, or leave what was there.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    data = line.encode() + b"\n"
    with writing(path), path.open("ab", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        try:
            written = file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(length)  # No half of a line.
            raise


def cut_torn_line(path: Path, mode: int = 0o666) -> bool:
    """Make a file of lines if it is not there; cut off a last line that a power cut has torn.

    Returns
    -------
    bool
        Whether there was one.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
        with os.fdopen(descriptor, "rb+") as file:
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
            torn = file.tell() > whole
            if torn:
                file.truncate(whole)
    return torn
