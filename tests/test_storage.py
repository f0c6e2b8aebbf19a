"""Shared files: place of the cache, locks, atomic writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from fedif_flower.errors import StorageError
from fedif_flower.storage import (
    cache_root,
    content_key,
    exclusive_lock,
    temporary_sibling,
    temporary_siblings,
    write_atomically,
)


def test_cache_root_prefers_argument_then_xdg_then_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root(tmp_path / "mine") == tmp_path / "mine" / "fedif-flower"
    assert cache_root() == tmp_path / "xdg" / "fedif-flower"
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_root() == tmp_path / "home" / ".cache" / "fedif-flower"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == tmp_path / "home" / ".cache" / "fedif-flower"


def test_content_key_ignores_order_of_keys_only() -> None:
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 2})
    assert len(content_key("x", digits=16)) == 16


def test_exclusive_lock_excludes_others_and_ends(tmp_path: Path) -> None:
    lock = tmp_path / "new" / "a.lock"
    with exclusive_lock(lock), pytest.raises(Timeout):
        FileLock(lock).acquire(timeout=0)
    with FileLock(lock).acquire(timeout=0):
        pass  # free again


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
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(StorageError, match=r"^cannot write .*/folder: Is a directory$"):
        write_atomically(target, b"content")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(StorageError, match=r"^cannot write .*/none/file: No such file"):
        write_atomically(tmp_path / "none" / "file", b"content")


def test_temporary_siblings_finds_only_what_belongs_to_the_path(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    mine = temporary_sibling(path)
    assert mine != temporary_sibling(path)
    for name in (mine, temporary_sibling(tmp_path / "entry2"), path):
        name.mkdir()
    assert temporary_siblings(path) == [mine]
