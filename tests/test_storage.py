"""Shared files: place of the cache, locks, atomic writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fedif_consortium.statement.manifest import put_folder
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.foreign import parse_json, read_toml, read_whole
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import cache_root, remove_leftovers, write_atomically, write_private


def test_cache_root_prefers_argument_then_xdg_then_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "fedif-flower"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/path")
    assert cache_root() == tmp_path / "home" / ".cache" / "fedif-flower"


def test_write_atomically_replaces_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, 5)  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    write_atomically(path, "né\n")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == "né\n".encode()


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"^cannot write .*/none/file: No such file"):
        write_atomically(tmp_path / "none" / "file", b"content")


@pytest.mark.parametrize("has_links", [True, False])
def test_a_private_file_replaces_none(tmp_path, monkeypatch, has_links):
    """Some file systems, such as exFAT, have no links."""

    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "key"
    write_private(path, b"secret")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StorageError, match="File exists"):
        write_private(path, b"another")
    assert path.read_bytes() == b"secret"
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


def test_hidden_files_that_are_none_of_ours_stay(tmp_path):
    """An editor's, say, that has the file open."""
    names = [".report.md.swp", ".report.md.0123abcd.swp", ".report.md.0123abcd"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    remove_leftovers(tmp_path / "report.md")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names[:2])


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no regular file"):
        read_whole(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"abc")
    with pytest.raises(OSError, match="more than 2 bytes"):
        read_whole(tmp_path / "long", 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (100_000 * "[", "nested deeper than 64 levels"),
        (65 * "[" + "1" + 65 * "]", "nested deeper than 64 levels"),
        ('{"a": {"b": 1, "b": 1}}', "the key 'b' is there twice"),
        (r'{"a": ["\ud800"]}', r"half of a surrogate pair in '\\ud800'"),
        (b"\xef\xbb\xbf{}", None),  # json's own words
    ],
)
def test_json_that_others_would_read_in_another_way_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)
    assert parse_json(64 * "[" + "1" + 64 * "]")


@pytest.mark.parametrize(
    "content", [b"a = " + 100_000 * b"[", "a = 1".encode("utf-16"), b"a = 1\na = 2"]
)
def test_toml_that_cannot_be_read_names_its_file(tmp_path, content):
    path = tmp_path / "own.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"own\.toml: "):
        read_toml(path)


def put_statement(folder: Path) -> Path:
    put_folder(folder / "statement", {"page": b"1", "members/001": b"2"})
    return folder / "statement"


def test_what_a_killed_process_was_putting_there_goes_with_the_next_folder(tmp_path):
    half = tmp_path / ".statement.0123abcd"
    half.mkdir()
    (half / "page").write_bytes(b"ha")
    put_statement(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["statement"]


def keep_attempt(folder: Path) -> Path:
    run = RunFolder(folder)
    run.rounds.begin()
    run.updates.mkdir()
    (run.updates / "round-000001.pt").write_bytes(b"3")
    kept = run.keep_attempt()
    assert kept is not None
    return kept


@pytest.mark.parametrize("put", [put_statement, keep_attempt])
def test_a_folder_is_on_the_disk_before_it_is_there_and_its_name_after(tmp_path, monkeypatch, put):
    """A power cut leaves no empty files where members, or the next attempt, rely on it."""
    synced: list[int] = []
    synced_before: list[int] = []  # Before the folder has its name.
    fsync = os.fsync
    replace = os.replace

    def noting_fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def noting_replace(source: Path, target: Path) -> None:
        if Path(source).is_dir():
            synced_before.extend(synced)
            synced.clear()
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    folder = put(tmp_path)
    inside = {path.stat().st_ino for path in (folder, *folder.rglob("*"))}
    assert len(inside) == 4
    assert inside <= set(synced_before)
    assert tmp_path.stat().st_ino in synced
