"""Shared files: place of the cache, locks, atomic writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedif_flower.errors import StorageError
from fedif_flower.storage import cache_root, write_atomically


def test_cache_root_prefers_argument_then_xdg_then_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root(tmp_path / "mine") == tmp_path / "mine" / "fedif-flower"
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
