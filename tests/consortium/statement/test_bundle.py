from __future__ import annotations

import csv
import json

import pytest

from fedif_consortium.statement.bundle import make_statement, parse_budget
from fedif_consortium.statement.manifest import ENVELOPE, read_signed
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.runs import make_run

ROUNDS = [{0: 0.5, 1: 0.25, 2: -0.125}] * 6


def test_a_statement_is_pages_a_table_json_and_what_checks_them(tmp_path, key):
    run_dir = make_run(tmp_path / "run", ROUNDS, names={1: "hospital-2"})
    folder = make_statement(run_dir, key, budget_cents=1000_00)
    assert folder == run_dir / "statement"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {
        *("statement.html", "statement.json", "statement.csv", ENVELOPE),
        *(f"members/00{n}.html" for n in (1, 2, 3)),
    }
    with (folder / "statement.csv").open(newline="") as file:
        rows = [(row["name"], row["amount"], row["verdict"]) for row in csv.DictReader(file)]
    assert rows[:2] == [("client 0", "666.67", "accept"), ("hospital-2", "333.33", "accept")]
    assert rows[2:] == [("client 2", "0.00", "quarantine")]
    signed = read_signed(folder)
    assert b"hospital-2" not in signed.envelope.payload
    there = set(RunFolder(run_dir).results())
    assert {name for name in signed.statement.files if "/" not in name} == there
    assert there > {"clients.csv", "model.pt", "config.json"}


def test_an_earlier_statement_is_refused_or_kept(tmp_path, key):
    run_dir = make_run(tmp_path / "run", ROUNDS)
    first = (make_statement(run_dir, key) / ENVELOPE).read_bytes()
    with pytest.raises(ConfigError, match="members may have been sent it; --again"):
        make_statement(run_dir, key, budget_cents=5)
    for _ in range(2):
        folder = make_statement(run_dir, key, budget_cents=5, again=True)
    assert (run_dir / "statement-1" / ENVELOPE).read_bytes() == first
    assert (run_dir / "statement-2" / ENVELOPE).is_file()
    assert json.loads((folder / "statement.json").read_text())["budget_cents"] == 5


def test_nothing_is_left_of_a_statement_that_cannot_be_made(tmp_path, key, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run_dir = make_run(tmp_path / "run", ROUNDS)
    before = sorted(path.name for path in run_dir.iterdir())
    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(StorageError, match="No space left"):
        make_statement(run_dir, key)
    assert sorted(path.name for path in run_dir.iterdir()) == before


def test_budgets_are_amounts():
    budgets = {"1000": 1000_00, "1000.5": 1000_50, "0.07": 7, "0": 0}
    assert {text: parse_budget(text) for text in budgets} == budgets
    for text in ("", "-1", "1e3", "1.005", "1,000", "nan", "1" * 13, "\u0661"):
        with pytest.raises(ConfigError, match="budget = "):
            parse_budget(text)
