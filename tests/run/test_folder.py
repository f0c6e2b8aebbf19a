"""A run's folder: names, columns, and files that are whole or not there."""

from __future__ import annotations

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import JsonFile, RunFolder, Table


def test_a_table_grows_by_lines_and_leaves_empty_what_is_not_there(tmp_path):
    table = Table(tmp_path / "t.csv", ("round", "share"))
    assert table.read() == []
    table.begin(["more"])
    table.append([{"round": 1, "share": 0.1, "other": "left out"}, {"round": 2, "more": True}])
    table.append([{"round": 3, "share": float("nan")}])
    assert table.path.read_bytes() == b"round,share,more\n1,0.1,\n2,,1\n3,nan,\n"
    assert table.read()[1] == {"round": "2", "share": "", "more": "1"}


def test_what_is_no_table_and_no_object_is_named(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,b\n\xff,1\n")
    with pytest.raises(ConfigError, match=r"t\.csv cannot be read"):
        Table(tmp_path / "t.csv", ()).read()
    for content in ("{", "null"):
        (tmp_path / "o.json").write_text(content)
        with pytest.raises(ConfigError, match=r"o\.json is no JSON object"):
            JsonFile(tmp_path / "o.json").read()


def test_a_new_run_keeps_an_earlier_ones_statement_under_another_name(tmp_path):
    folder = RunFolder(tmp_path)
    for number in (1, 2):
        folder.statement.mkdir()
        (folder.statement / "account.json").write_text(str(number))
        folder.summary.write({})
        folder.begin()
        assert not folder.statement.exists()
        assert not folder.is_complete()
        assert (tmp_path / f"statement-{number}" / "account.json").read_text() == str(number)


def test_results_are_those_that_are_there_in_their_order_and_nothing_else(tmp_path):
    folder = RunFolder(tmp_path)
    folder.updates.mkdir()
    results = ["summary.json", "rounds.csv", "masking.json", "report.md", "updates/round-000002.pt"]
    for name in (*reversed(results), "own.log", "state.json"):
        (tmp_path / name).write_text("")
    assert folder.results() == results
    folder.begin()
    assert {path.name for path in tmp_path.iterdir()} == {"own.log", "updates"}
