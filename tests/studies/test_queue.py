"""The queue on federations of a second."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path

import pytest

from fedif_flower.errors import ConfigError
from fedif_studies.queue import (
    COLUMNS,
    COMPARED,
    RESULTS,
    Progress,
    Wanted,
    cells_of,
    missing,
    work_through,
)

SWEEP = """
name = "small"
dataset = "digits"
device = "cpu"
num-clients = 5
fraction-train = 0.4
num-server-rounds = 3
local-epochs = 1
strategy = ["fedavg", "fedif"]
"""


def small(tmp_path: Path, folder: str = "runs") -> list[Wanted]:
    path = tmp_path / "small.toml"
    path.write_text(SWEEP)
    return cells_of(path, "", tmp_path / folder, 1, tmp_path / "results")


def rows(tmp_path: Path) -> list[dict[str, str]]:
    with (tmp_path / "results" / "small.csv").open(newline="") as file:
        return list(csv.DictReader(file))


class Stopping(Progress):
    """Is sent SIGTERM after a round of its second cell."""

    def on_row(self, cell, row):
        super().on_row(cell, row)
        if self._at == 1 and row.round == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_queue_that_is_stopped_goes_on_in_the_middle_of_its_cell(tmp_path, capsys):
    todo = small(tmp_path)
    assert [one.point for one in todo] == [
        {"strategy": "fedavg", "seed": 1},
        {"strategy": "fedif", "seed": 1},
    ]
    assert missing(todo) == todo
    with pytest.raises(KeyboardInterrupt):
        work_through(todo, "abc", Stopping(todo, every=1))
    (first,) = rows(tmp_path)
    assert (first["strategy"], first["seed"], first["revision"]) == ("fedavg", "1", "abc")
    assert first["processor"]
    assert float(first["seconds"]) > 0
    left = missing(small(tmp_path))
    assert [one.point["strategy"] for one in left] == ["fedif"]
    seen = []

    class Listening(Progress):
        def on_row(self, cell, row):
            super().on_row(cell, row)
            seen.append(row.round)

    capsys.readouterr()
    assert work_through(left, "def", Listening(left, every=1))
    assert seen == [2, 3]
    assert "round 3 of 3" in capsys.readouterr().out
    assert missing(small(tmp_path)) == []
    # As if it had never been stopped, on another machine.
    resumed = rows(tmp_path)[1]
    other = small(tmp_path, "elsewhere")[1:]
    (tmp_path / "results" / "small.csv").unlink()
    assert work_through(other, "def", Progress(other))
    (again,) = rows(tmp_path)
    assert again["test-last"] == resumed["test-last"]


def test_what_is_complete_is_not_run_again_for_its_row(tmp_path):
    todo = small(tmp_path)[:1]
    assert work_through(todo, "abc", Progress(todo))
    (tmp_path / "results" / "small.csv").unlink()

    class Idle(Progress):
        def on_start(self, cell):
            raise AssertionError(cell.name)

    assert work_through(todo, "abc", Idle(todo))
    assert len(rows(tmp_path)) == 1


def test_a_cell_that_fails_does_not_end_the_queue(tmp_path, capsys):
    todo = small(tmp_path)
    todo[0].cell.config.run_dir.parent.mkdir(parents=True)
    todo[0].cell.config.run_dir.write_text("in the way")
    assert not work_through(todo, "abc", Progress(todo))
    assert [row["strategy"] for row in rows(tmp_path)] == ["fedif"]
    assert "failed:" in capsys.readouterr().err


def test_a_row_is_recognised_by_the_axes_of_its_sweep(tmp_path):
    (first, second) = small(tmp_path)
    row = {"strategy": "fedavg", "seed": "1", "server-momentum": "0.5"}
    assert first.is_in([row])
    assert not second.is_in([row])
    assert not first.is_in([{**row, "seed": "0"}])
    assert not first.is_in([{"strategy": "fedavg"}])


def test_columns_have_a_sweep_each():
    assert len(COLUMNS) == len(set(COLUMNS)) == 10
    assert set(COMPARED) < set(COLUMNS)
    assert all((RESULTS / f"influence-descent-{column}.toml").exists() for column in COLUMNS)


def test_what_a_queue_cannot_order_is_refused(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SWEEP + "seeds = 2\n")
    with pytest.raises(ConfigError, match=r"seeds in .* allowed in a queue: axes, and --seeds"):
        cells_of(path, "", tmp_path, 0)
    path.write_text(SWEEP.replace("fedif", "fedfi"))
    with pytest.raises(ConfigError, match="strategy = 'fedfi'"):
        cells_of(path, "", tmp_path, 0)
    with pytest.raises(ConfigError, match="nowhere"):
        cells_of(tmp_path / "nowhere.toml", "", tmp_path, 0)
