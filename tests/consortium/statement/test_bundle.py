from __future__ import annotations

import csv
import json

import pytest

from fedif_consortium.statement.bundle import (
    make_statement,
    parse_budget,
)
from fedif_consortium.statement.manifest import read_signed
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.runs import make_run

ROUNDS = [{0: 0.5, 1: 0.25, 2: -0.125}] * 6


def test_a_statement_is_pages_a_table_json_and_what_checks_them(tmp_path, key):
    run_dir = make_run(tmp_path / "run", ROUNDS, names={1: "hospital-2"})
    folder = make_statement(run_dir, key, budget_cents=1000_00)
    assert folder == run_dir / "statement"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {
        *("statement.html", "statement.json", "statement.csv"),
        "manifest.intoto.json",
        *(f"members/00{n}.html" for n in (1, 2, 3)),
    }
    with (folder / "statement.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["client 0", "hospital-2", "client 2"]
    assert [row["amount"] for row in rows] == ["666.67", "333.33", "0.00"]
    assert [row["verdict"] for row in rows] == ["accept", "accept", "quarantine"]
    signed = read_signed(folder)
    assert b"hospital-2" not in signed.envelope.payload
    there = set(RunFolder(run_dir).results())
    assert {name for name in signed.statement.files if "/" not in name} == there
    assert there > {"clients.csv", "model.pt", "config.json"}


def test_an_earlier_statement_is_refused_or_kept(tmp_path, key):
    run_dir = make_run(tmp_path / "run", ROUNDS)
    folder = make_statement(run_dir, key)
    first = (folder / "manifest.intoto.json").read_bytes()
    with pytest.raises(ConfigError, match="members may have been sent it; --again"):
        make_statement(run_dir, key, budget_cents=5)
    assert (folder / "manifest.intoto.json").read_bytes() == first
    for _ in range(2):
        make_statement(run_dir, key, budget_cents=5, again=True)
    assert (run_dir / "statement-1" / "manifest.intoto.json").read_bytes() == first
    assert (run_dir / "statement-2" / "manifest.intoto.json").is_file()
    assert json.loads((folder / "statement.json").read_text())["budget_cents"] == 5


def test_nothing_is_left_of_a_statement_that_cannot_be_made(tmp_path, key, monkeypatch):
    run_dir = make_run(tmp_path / "run", ROUNDS)
    before = sorted(path.name for path in run_dir.iterdir())
    monkeypatch.setattr("pathlib.Path.replace", _full)
    with pytest.raises(StorageError, match="No space left"):
        make_statement(run_dir, key)
    assert sorted(path.name for path in run_dir.iterdir()) == before


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("text", "cents"),
    [
        *(("1000", 100000), ("1000.5", 100050), ("0.07", 7), ("0", 0)),
        *((no, None) for no in ("", "-1", "1e3", "1.005", "1,000", "nan", "1" * 13, "\u0661")),
    ],
)
def test_budgets_are_amounts(text, cents):
    if cents is not None:
        assert parse_budget(text) == cents
        return
    with pytest.raises(ConfigError, match="budget = "):
        parse_budget(text)
