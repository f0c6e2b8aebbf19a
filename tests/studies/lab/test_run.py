from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.shared_grid import GridInterrupted
from fedif_studies.lab import run
from fedif_studies.lab.run import fill, missing
from fedif_studies.rows import Row, add_rows

CELLS: list[Row] = [{"name": name, "share": 0.5} for name in "abc"]


@pytest.fixture(autouse=True)
def _revision(monkeypatch):
    monkeypatch.setattr(run, "committed_revision", lambda: "abc")


def doubled(cell: Row) -> list[Row]:
    if cell["name"] == "b":
        raise ConfigError("no")
    return [{"figure": cell["share"]}, {"figure": 2}]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_has_a_row_is_not_measured_and_an_error_ends_its_own_cell(tmp_path, capsys, jobs):
    path = tmp_path / "rows.csv"
    path.write_text("name,share,figure\na,0.50,7\n")
    assert missing(path, CELLS) == CELLS[1:]
    assert not fill(path, CELLS, doubled, jobs=jobs)
    assert "failed: b, 0.5: no" in capsys.readouterr().err
    rows = [(row["name"], row["figure"], row["revision"]) for row in read_rows(path)]
    assert rows == [("a", "7", ""), ("c", "0.5", "abc"), ("c", "2", "abc")]
    assert missing(path, CELLS) == [CELLS[1]]


def test_a_signal_ends_it_after_its_cell(tmp_path):
    def stopped(_: Row) -> list[Row]:
        os.kill(os.getpid(), signal.SIGTERM)
        return [{"figure": 1}]

    path = tmp_path / "rows.csv"
    with pytest.raises(GridInterrupted, match="stopped: 2 cells are left"):
        fill(path, CELLS, stopped)
    assert [row["name"] for row in read_rows(path)] == ["a"]


def test_those_who_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [{"of": index % 3, f"own {index % 3}": index} for index in range(30)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda row: add_rows(path, [row]), rows))
    found = read_rows(path)
    assert sorted(int(row[f"own {row['of']}"]) for row in found) == list(range(30))
