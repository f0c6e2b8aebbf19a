from __future__ import annotations

import os
import platform
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from fedif_flower.client.app import task_app
from fedif_flower.run.provenance import package_version
from fedif_flower.run.rows import read_rows
from fedif_studies import rows as rows_of
from fedif_studies.commands import cli
from fedif_studies.lab import run
from fedif_studies.lab.cells import find_result
from fedif_studies.lab.run import GridInterrupted, fill, missing, run_cells
from fedif_studies.rows import Row, add_rows
from tests.studies.lab.small import small_cell

CELLS: list[Row] = [{"name": name, "share": 0.5} for name in "abc"]


@pytest.fixture(autouse=True)
def _revision(monkeypatch):
    monkeypatch.setattr(run, "committed_revision", lambda: "abc")


def doubled(cell: Row) -> list[Row]:
    if cell["name"] == "b":
        raise RuntimeError("out of memory")
    return [{"figure": cell["share"]}, {"figure": 2}]


def killed(cell: Row) -> list[Row]:
    os.kill(os.getpid(), signal.SIGKILL)
    return doubled(cell)


def test_a_killed_process_is_an_error_of_cells_that_are_tried_again(tmp_path, capsys):
    assert not fill(tmp_path / "rows.csv", CELLS, killed, jobs=2)
    assert capsys.readouterr().err.count("failed: ") == 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_has_a_row_is_not_measured_and_an_error_ends_its_own_cell(tmp_path, capsys, jobs):
    path = tmp_path / "rows.csv"
    path.write_text("name,share,figure\na,0.50,7\n")
    assert missing(path, CELLS) == CELLS[1:]
    assert not fill(path, CELLS, doubled, jobs=jobs)
    assert "failed: b, 0.5: RuntimeError('out of memory')" in capsys.readouterr().err
    rows = [(row["name"], row["figure"], row["revision"]) for row in read_rows(path)]
    assert rows == [("a", "7", ""), ("c", "0.5", "abc"), ("c", "2", "abc")]
    assert missing(path, CELLS) == [CELLS[1]]


def test_those_who_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [{"of": index % 3, f"own {index % 3}": index} for index in range(30)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda row: add_rows(path, [row]), rows))
    found = read_rows(path)
    assert sorted(int(row[f"own {row['of']}"]) for row in found) == list(range(30))


def test_another_project_around_an_installed_package_is_none_of_its_revision(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "lib" / "fedif_flower").mkdir(parents=True)
    (tmp_path / "lib" / "fedif_flower" / "installed.py").touch()
    monkeypatch.setattr(rows_of, "RESULTS", tmp_path / "lib" / "docs" / "results")
    monkeypatch.setattr(rows_of, "_CPUS", tmp_path / "not on this system")
    assert rows_of.committed_revision() == package_version()
    assert rows_of.machine()["processor"] == platform.machine()


def test_a_cell_that_failed_is_tried_again_and_only_that(tmp_path, capsys):
    good, bad = small_cell(tmp_path, "good"), small_cell(tmp_path, "bad", seed=1)
    bad.config.run_dir.parent.mkdir(parents=True)
    bad.config.run_dir.write_text("in the way")
    assert not run_cells([bad, good], 2)
    assert "failed: bad: output-dir" in capsys.readouterr().err
    bad.config.run_dir.unlink()
    assert run_cells([bad, good, small_cell(tmp_path, "also bad", seed=1)], 1)
    assert "1 of 2 cells are complete already" in capsys.readouterr().out


def test_a_sweep_reports_its_cells_wherever_they_lie(tmp_path):
    """The second one's first cell is the first one's."""
    small = "num-clients = 5\nfraction-train = 0.4\nnum-server-rounds = 2\nlocal-epochs = 1\n"
    for name, strategies in (("one", ["fedavg"]), ("two", ["fedavg", "median"])):
        (tmp_path / f"{name}.toml").write_text(f"{small}device = 'cpu'\nstrategy = {strategies}\n")
        words = ["sweep", f"{tmp_path}/{name}.toml", "--output-dir", f"{tmp_path}/out"]
        told = CliRunner().invoke(cli, [*words, "--jobs", "1"])
        assert told.exit_code == 0, told.output
    assert "1 of 2 cells are complete already" in told.output
    rows = read_rows(tmp_path / "out" / "two" / "results.csv")
    assert [row["strategy"] for row in rows] == ["fedavg", "median"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_grid_that_goes_on(tmp_path, monkeypatch, number):
    trained, app = [], task_app()

    def counted(message, context):
        if message.metadata.message_type == "train":
            trained.append(message)
            os.kill(os.getpid(), signal.SIGHUP)  # As nohup has it ignored.
            if len(trained) == 7:
                os.kill(os.getpid(), number)
        return app(message, context)

    monkeypatch.setattr(run, "task_app", lambda: counted)
    settings = {"num_server_rounds": 3, "checkpoint_every": 1}
    cells = [small_cell(tmp_path), small_cell(tmp_path, "second", seed=1, **settings)]
    handler, hung_up = signal.getsignal(number), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with pytest.raises(GridInterrupted, match="stopped: 1 cells are left; the same command"):
        run_cells(cells, 1)
    assert signal.getsignal(number) is handler
    assert [find_result(cell) is not None for cell in cells] == [True, False]
    assert run_cells(cells, 1)
    signal.signal(signal.SIGHUP, hung_up)
    rows = read_rows(cells[1].config.run_dir / "rounds.csv")
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    # The first cell's four, the first round's two, one of the second's, and what was left.
    assert len(trained) == 4 + 2 + 1 + 4
