from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from fedif_flower.devices import torch_threads
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.shared_grid import GridInterrupted
from fedif_studies.lab.engine import run_cells
from tests.studies.lab.small import CountingGrid, printed, silent_console, small_cell


class Launches:
    """Stands for Ray: a grid in this process, and a list of what was started."""

    def __init__(self, grid: type[CountingGrid] = CountingGrid) -> None:
        self.grid_type = grid
        self.grids: list[CountingGrid] = []

    def __call__(self, num_clients, main) -> None:
        self.grids.append(self.grid_type(num_clients))
        main(self.grids[-1], 2)


def rounds(run_dir: Path) -> list[str]:
    return [row["round"] for row in read_rows(run_dir / "rounds.csv")]


def test_all_cells_in_one_simulation_and_nothing_twice(tmp_path):
    cells = [
        small_cell(tmp_path, f"{strategy}-{seed}", strategy=strategy, seed=seed)
        for strategy in ("fedif", "fedavg")
        for seed in (0, 1)
    ]
    launches, console = Launches(), silent_console()
    assert run_cells(cells, launches, console, jobs=2)
    assert [grid.trained for grid in launches.grids] == [4 * 2 * 2]
    for cell in cells:
        assert rounds(cell.config.run_dir) == ["0", "1", "2"]
        summary = json.loads((cell.config.run_dir / "summary.json").read_text())
        assert summary["config"]["strategy"] == cell.config.strategy
    assert "4 cells, 2 at a time over 2 actors" in printed(console)
    assert "s of client training / 2 actors" in printed(console)

    again = Launches()
    assert run_cells(cells, again, console)
    assert again.grids == []
    assert "4 of 4 cells are complete already" in printed(console)


def test_cells_side_by_side_give_the_bits_of_a_cell_alone(tmp_path):
    def run(folder: str, jobs: int) -> list[str]:
        cells = [small_cell(tmp_path / folder, name, strategy=name) for name in ("fedif", "fedavg")]
        assert run_cells(cells, Launches(), silent_console(), jobs=jobs)
        columns = ("round", "partition_id", "score", "weight_score", "weight", "train_loss")
        rows = [row for cell in cells for row in read_rows(cell.config.run_dir / "clients.csv")]
        return [",".join(row[column] for column in columns) for row in rows]

    with torch_threads(1):  # as many as cells side by side have
        assert run("together", 2) == run("one-by-one", 1)


def test_a_failed_cell_is_named_and_stops_no_other(tmp_path):
    good, bad = small_cell(tmp_path, "good"), small_cell(tmp_path, "bad", seed=1)
    bad.config.run_dir.parent.mkdir(parents=True)
    bad.config.run_dir.write_text("in the way")
    console = silent_console()
    assert not run_cells([bad, good], Launches(), console, jobs=1)
    assert RunFolder(good.config.run_dir).is_complete()
    assert "failed: bad: output-dir" in printed(console)
    # What failed is tried again, and only that.
    bad.config.run_dir.unlink()
    launches = Launches()
    assert run_cells([bad, good], launches, silent_console())
    assert launches.grids[0].trained == 2 * 2


class InterruptedGrid(CountingGrid):
    """Ctrl-C is pressed while the last of these messages waits for its answer."""

    pressed_after = 4

    def pull_messages(self, message_ids):
        if self.trained >= self.pressed_after:
            os.kill(os.getpid(), signal.SIGINT)
            return []
        return super().pull_messages(message_ids)


def test_ctrl_c_leaves_a_grid_that_goes_on(tmp_path):
    cells = [
        small_cell(tmp_path, "first"),
        small_cell(tmp_path, "second", seed=1, num_server_rounds=3),
    ]
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(GridInterrupted, match="stopped: 1 of 2 cells are complete; go on "):
        run_cells(cells, Launches(InterruptedGrid), silent_console(), jobs=1)
    assert signal.getsignal(signal.SIGINT) is handler
    assert [RunFolder(cell.config.run_dir).is_complete() for cell in cells] == [True, False]
    launches = Launches()
    assert run_cells(cells, launches, silent_console(), jobs=1)
    assert rounds(cells[1].config.run_dir) == ["0", "1", "2", "3"]
    assert launches.grids[0].trained == 3 * 2
