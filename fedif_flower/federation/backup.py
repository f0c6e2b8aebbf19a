"""One archive with everything of a federation's server that cannot be made again."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.federation.folder import FederationFolder
from fedif_flower.federation.steps import Steps
from fedif_flower.storage import make_folder, sync_directory, temporary_sibling, writing

CONTENTS = "contents.json"  # The archive's last file: the SHA-256 of all others.
_FILES = (
    *("federation.toml", "ca.key", "ca.crt", "server.key", "server.crt", "statement-key.pem"),
    *("keeper-client.key", "keeper-client.crt", "server.previous.crt"),
)
_SECRET = 0o600


def back_up(
    folder: FederationFolder, archive: Path | None, steps: Steps, *, runs: bool = True
) -> Path:
    """Write the archive, for its owner alone, and read it again; return it.

    It has keys, certificates, members, the SuperLink's database as it is at this moment, all TOML
    files (policies among them), and the folder of runs.

    Parameters
    ----------
    folder : FederationFolder
        The server's; a SuperLink may be running.
    archive : Path, optional
        A new file; default: one in the folder, with federation and time in its name.
    steps : Steps
        Says what was done.
    runs : bool
        With the results of runs, which may be large.

    Raises
    ------
    ConfigError
        If there is no federation, or the file is there already.
    StorageError
        If it cannot be written, or is not what was written.
    """
    name = folder.settings().name
    now = datetime.now(UTC)
    path = archive or folder.backups / f"{name}-{now:%Y%m%d-%H%M%S}.tar.gz"
    if path.exists():
        raise ConfigError(f"{path} is there already")
    files = [*_kept(folder), *(_below(folder.runs) if runs else [])]

    def act() -> None:
        make_folder(path.parent)
        temporary = temporary_sibling(path)
        with writing(path):
            try:
                _write(folder, files, temporary)
                check(temporary)
                os.link(temporary, path)  # Unlike a rename, not over another file.
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(path.parent)

    database = ["superlink.db"] if folder.database.exists() else []
    shown = ", ".join([*(str(file.relative_to(folder.path)) for file in _kept(folder)), *database])
    steps.do(
        "write", "wrote", f"{path}, secret, and read it again: {shown}{_and(files, folder)}", act
    )
    return path


def check(archive: Path) -> list[str]:
    """Return the names in an archive, once each file is known to be what was written.

    Raises
    ------
    StorageError
        If it cannot be read, or a file differs, is missing, or is one too many.
    """
    try:
        found, last = {}, b""
        with tarfile.open(archive) as opened:
            for name, last in _members(opened):
                found[name] = hashlib.sha256(last).hexdigest()
        told = json.loads(last) if found.pop(CONTENTS, None) else None
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        raise StorageError(f"{archive} cannot be read: {error}") from error
    if not isinstance(told, dict):
        raise StorageError(f"{archive} is no backup of a federation")
    if found != told:
        wrong = sorted(name for name in {*found, *told} if found.get(name) != told.get(name))
        raise StorageError(f"{archive} is damaged: {', '.join(wrong[:5])}")
    return sorted(found)


def restore(folder: FederationFolder, archive: Path, steps: Steps) -> None:
    """Put an archive's files into a folder that has none of them.

    Raises
    ------
    ConfigError
        If one of them is there, or a name leads out of the folder.
    StorageError
        If the archive is damaged, or a file cannot be written.
    """
    names = check(archive)
    for name in names:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise ConfigError(f"{archive}: {name!r} leads out of the folder")
        if (folder.path / name).exists():
            raise ConfigError(f"{folder.path / name} is there already: restore into another folder")

    def act() -> None:
        with writing(folder.path):
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tarfile.open(archive) as opened:
            for name, data in _members(opened):
                if name != CONTENTS:
                    _restore_file(folder.path / name, data)

    steps.do("restore", "restored", f"{len(names)} files into {folder.path}", act)


def _restore_file(path: Path, data: bytes) -> None:
    make_folder(path.parent)
    mode = 0o644 if path.suffix in (".crt", ".toml", ".pub") else _SECRET
    with writing(path), path.open("xb") as file:
        path.chmod(mode)
        file.write(data)


def _kept(folder: FederationFolder) -> list[Path]:
    """Return the small files: keys, certificates, members, and every policy."""
    named = [folder.path / name for name in _FILES]
    members = (path for end in ("toml", "pub") for path in folder.path.glob(f"members/*.{end}"))
    others = sorted({*folder.path.glob("*.toml"), *members})
    return [path for path in dict.fromkeys([*named, *others]) if path.is_file()]


def _below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))


def _and(files: list[Path], folder: FederationFolder) -> str:
    runs = sum(path.is_relative_to(folder.runs) for path in files)
    return f", and {runs} files of runs" if runs else ""


def _write(folder: FederationFolder, files: list[Path], archive: Path) -> None:
    """Write files and a copy of the database; a run's may vanish meanwhile."""
    sources = {str(path.relative_to(folder.path)): path for path in files}
    told: dict[str, str] = {}
    descriptor = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET)
    with (
        os.fdopen(descriptor, "wb") as file,
        tempfile.TemporaryDirectory(dir=archive.parent) as scratch,
    ):
        if folder.database.exists():
            sources[folder.database.name] = Path(scratch) / folder.database.name
            _copy_database(folder.database, sources[folder.database.name])
        with tarfile.open(fileobj=file, mode="w:gz") as opened:
            for name, path in sources.items():
                try:
                    data = path.read_bytes()
                except FileNotFoundError:
                    continue
                told[name] = hashlib.sha256(data).hexdigest()
                _add(opened, name, data)
            _add(opened, CONTENTS, json.dumps(told, indent=1).encode())
        file.flush()
        os.fsync(file.fileno())


def _copy_database(database: Path, copy: Path) -> None:
    """Copy a database that may be in use, whole."""
    try:
        with (
            closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
            (found,) = target.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.Error as error:
        raise StorageError(f"{database} cannot be copied: {error}") from error
    if found != "ok":
        raise StorageError(f"{database} is damaged: {found}")


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), _SECRET
    entry.mtime = int(datetime.now(UTC).timestamp())
    archive.addfile(entry, io.BytesIO(data))


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of an archive's plain files; it has no others."""
    for entry in archive:
        file = archive.extractfile(entry) if entry.isfile() else None
        if file is None:
            raise tarfile.TarError(f"{entry.name!r} is no plain file")
        yield entry.name, file.read()
