"""Files that several processes may use: where the cache is, locks, and all-or-nothing writes."""

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
    """Return ``<$XDG_CONFIG_HOME or ~/.config>/fedif-flower``, the folder for keys."""
    return _xdg("XDG_CONFIG_HOME", "~/.config") / "fedif-flower"


def _xdg(variable: str, usual: str) -> Path:
    """Return the folder that an environment variable names; else the usual one."""
    folder = Path(os.environ.get(variable, ""))
    # The XDG specification tells programs to ignore a relative path.
    if folder.is_absolute():
        return folder
    return Path(usual).expanduser()


def content_key(content: object, digits: int = 64) -> str:
    """Return the first ``digits`` hex digits of the SHA-256 of a value, written as JSON."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


@contextmanager
def cache_errors(root: Path) -> Iterator[None]:
    """Turn an error of writing (disk full, read-only) into a DataError that names the cache.

    Raises
    ------
    DataError
        In the place of any OSError or StorageError within the context.
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

    The file is not removed afterwards. Otherwise another process could create and lock a new file
    of the same name while a third one still waits for the old file.

    Raises
    ------
    StorageError
        If the file cannot be created or locked.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path).acquire()
    with lock:
        yield


def temporary_sibling(path: Path) -> Path:
    """Return a new hidden name in the same folder, from which a rename to ``path`` is atomic."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def remove_leftovers(path: Path) -> None:
    """Remove files and folders of :func:`temporary_sibling` that a killed process left behind.

    The name of ``path`` may be a pattern, such as ``round-*``.
    """
    digits = 8 * "[0-9a-f]"
    for leftover in path.parent.glob(f".{path.name}.{digits}"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def set_aside(path: Path) -> None:
    """Rename a file or folder to the first free name of ``<name>-1``, ``<name>-2`` and so on.

    If there is nothing at the path, nothing happens.
    """
    if not path.exists():
        return
    for number in count(1):
        free = path.with_name(f"{path.name}-{number}")
        if not free.exists():
            path.replace(free)
            return


def sync_directory(path: Path) -> None:
    """Write the list of a folder's files to the disk, so that new names survive a power cut."""
    _sync(path)


def _sync(path: Path) -> None:
    """Write what a file or a folder holds from the system's cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Write a folder and all files and folders in it to the disk, to survive a power cut."""
    for place, _, names in os.walk(path):
        for name in names:
            _sync(Path(place) / name)
        _sync(Path(place))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while a file or folder is written into an error of one sentence.

    Raises
    ------
    StorageError
        In the place of any OSError within the context; it names the path and the reason.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if they do not exist.

    Raises
    ------
    StorageError
        If the folder cannot be created.
    """
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, at any moment.

    Raises
    ------
    StorageError
        If the file cannot be written, or exists already.
    """
    make_folder(path.parent)
    _write(path, content, 0o600, _place_new)


def _place_new(temporary: Path, path: Path) -> None:
    """Rename a file to a path at which there is none; raise FileExistsError if there is one."""
    try:
        os.link(temporary, path)  # Unlike a rename, a link replaces no existing file.
    except FileExistsError:
        raise
    except OSError:
        # The file system has no links, such as exFAT. An empty file takes the name first.
        path.touch(mode=0o600, exist_ok=False)
        temporary.replace(path)


def make_private(path: Path, content: bytes) -> None:
    """Write a file as :func:`write_private` does, unless another process makes it meanwhile.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    try:
        write_private(path, content)
    except StorageError:
        if not path.exists():
            raise


def _write(path: Path, content: bytes, mode: int, place: Callable[[Path, Path], None]) -> None:
    """Write a file beside ``path``, and put it there once it is whole and on the disk.

    Parameters
    ----------
    path : Path
        The file to write; its folder exists.
    content : bytes
        All of it.
    mode : int
        Its permissions, before the process's own mask.
    place : callable
        Puts the temporary file, its first argument, at ``path``, its second.
    """
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
    """Raise ConfigError if others than the owner may use a file; errors call the file ``name``."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigError(f"{name} = {str(path)!r}: others may read it; `chmod 600` it")


def write_atomically(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Write a file so that it survives a power cut; if that fails, the old file stays.

    Parameters
    ----------
    path : Path
        The file; its folder exists.
    content : bytes or str
        All of the file; text is written as UTF-8.
    mode : int
        The file's permissions, before the process's own mask. They also hold while it is written.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    _write(path, data, mode, os.replace)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file so that it survives a power cut; if that fails, the file stays as is.

    Raises
    ------
    StorageError
        If the line cannot be written.
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
            file.truncate(length)  # Remove what was written of the line.
            raise


def cut_torn_line(path: Path, mode: int = 0o666) -> bool:
    """Remove an incomplete last line from a file, such as a power cut may leave.

    If the file does not exist, it is created.

    Returns
    -------
    bool
        Whether there was an incomplete line.

    Raises
    ------
    StorageError
        If the file cannot be created or written.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
        with os.fdopen(descriptor, "rb+") as file:
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
            torn = file.tell() > whole
            if torn:
                file.truncate(whole)
    return torn
