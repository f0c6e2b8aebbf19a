from __future__ import annotations

import csv
import json
import re

import pytest

from fedif_consortium.statement.bundle import make_statement, parse_budget
from fedif_consortium.statement.manifest import ENVELOPE, read_signed
from fedif_consortium.statement.members_names import read_names
from fedif_consortium.statement.records import read_run
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


@pytest.fixture
def split_run(tmp_path):
    blocks = {0: [0.5, 0.5], 1: [0.5, 0.5]}
    return make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}, {0: 0.5}], blocks=blocks)


@pytest.mark.parametrize("name", ["summary", "config", "provenance", "attribution", "clients"])
def test_a_file_that_is_missing_is_named(split_run, key, name):
    path = getattr(RunFolder(split_run), name).path
    path.unlink()
    with pytest.raises(ConfigError, match=f"{path.name}'"):
        make_statement(split_run, key)


ROW = "\n1,0,0,0.5,0.5,"


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("attribution", ROW, "\n1,0,0,0.5,inf,", "attribution.csv, line 2"),
        ("attribution", ROW, "\n1,0,0,0.5,,", "attribution.csv, line 2"),
        ("attribution", "client_id", "client", "attribution.csv, line 2: client_id is missing"),
        ("attribution", "0.25,0.25\n1,1", "0.25,0.25,7\n1,1", "attribution.csv, line 2"),
        ("clients", "accepted", "absent", "clients.csv, line 2: status = 'absent'"),
        ("attributed_rounds", "\n1,", "\n5,", "are not 1, 2, 3"),
        (
            "attribution",
            "\n1,1,1",
            "\n1,9,0",
            "attribution.csv: a client is there twice in a round",
        ),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_named(split_run, name, old, new, said):
    path = getattr(RunFolder(split_run), name).path
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_run(split_run)


@pytest.mark.parametrize(
    "text",
    ["id,name\n1,a", "x,a", "-1,a", "1", "1,", "1,a\x1b[0m", "1,a,b", "7,a\n7,b", f"1,{81 * 'a'}"],
)
def test_names_that_will_not_do_are_named(tmp_path, text):
    path = tmp_path / "names.csv"
    path.write_text(text if "id" in text else f"client_id,name\n{text}")
    with pytest.raises(ConfigError, match=f"names.csv, line {3 if '7' in text else 2}: "):
        read_names(path)
    path.write_text("\ufeffclient_id,name,place\n18446744073709551615, St. Mary's ,Graz")
    assert read_names(path) == {2**64 - 1: "St. Mary's"}


def test_a_name_that_looks_like_a_formula_is_read_as_it_was_registered(tmp_path):
    """Its key's file is called so; the table has a sign before it, for spreadsheets."""
    names = {1: "@home", 2: "=z", 3: "-y", 4: "'t Zand", 5: "O'Brien"}
    table = RunFolder(tmp_path).names
    table.replace({"client_id": number, "name": name} for number, name in names.items())
    lines = ["client_id,name", "1,'@home", "2,'=z", "3,'-y", "4,'t Zand", "5,O'Brien"]
    assert table.path.read_text().splitlines() == lines
    assert read_names(table.path) == names
