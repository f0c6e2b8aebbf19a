"""The commands ``fedif arena`` and ``fedif audit``: what they refuse, and how they write pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedif_flower.errors import ConfigError
from fedif_studies import rows
from fedif_studies.arena import bouts, tables
from fedif_studies.audit import measure, page
from fedif_studies.commands import cli


@pytest.mark.parametrize(
    ("words", "measured", "written", "place"),
    [
        (["arena", "--output"], (bouts, "play"), (tables, "write_tables"), "arena.md"),
        (["audit", "--output-dir"], (measure, "measure"), (page, "write_audit"), "arena.csv"),
    ],
)
def test_a_page_is_written_while_nobody_else_writes_it(
    tmp_path, monkeypatch, words, measured, written, place
):
    """Another's page, of more rows, must not be written over by one of rows read before."""
    held: list[Path] = []
    held_at_writing: list[list[Path]] = []

    @contextmanager
    def holding(path: Path) -> Iterator[None]:
        held.append(path)
        yield
        held.remove(path)

    def write(*_: Any) -> Path:
        held_at_writing.append([*held])
        return tmp_path

    monkeypatch.setattr(rows, "held_alone", holding)
    monkeypatch.setattr(*measured, lambda *_, **__: True)
    monkeypatch.setattr(*written, write)
    told = CliRunner().invoke(cli, [*words, f"{tmp_path}/arena.csv"])
    assert told.exit_code == 0, told.output
    assert held_at_writing == [[tmp_path / place]]


def test_data_that_the_arena_cannot_read_are_refused_before_the_first_bout(tmp_path):
    """Each of its 3,510 bouts failed, and an empty page was written."""
    told = CliRunner().invoke(cli, ["arena", "--dataset", "zzz", "--output", f"{tmp_path}/a.csv"])
    assert str(told.exception).startswith("dataset = 'zzz'; allowed: digits, ")
    assert isinstance(told.exception, ConfigError)
    assert list(tmp_path.iterdir()) == []
