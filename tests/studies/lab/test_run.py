"""Cells that are federations: run once, resumed, claimed by one queue, and reported."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from filelock import FileLock, Timeout
from typer.testing import CliRunner

from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.outside_code import hashes_here
from fedif_flower.run.rows import read_rows
from fedif_flower.server.record import Round
from fedif_studies import rows as rows_of
from fedif_studies.commands import cli
from fedif_studies.lab import measurements, run, sweep_report
from fedif_studies.lab.cells import Cell, find_result, remarks_on
from fedif_studies.lab.measurements import (
    find_measurements,
    from_row,
    read_measurement,
    to_row,
)
from fedif_studies.lab.parallel import GridInterrupted
from fedif_studies.lab.run import (
    CellProgress,
    claimed,
    claims,
    federated,
    run_anew,
    run_cell,
    run_cells,
)
from fedif_studies.lab.spec import read_sweep
from fedif_studies.rows import Row
from tests.studies.lab.small import DEFAULTS, full_disk, small_cell, write_result


def test_a_cell_that_failed_is_tried_again_and_only_that(tmp_path, capsys):
    good, bad = small_cell(tmp_path, "good"), small_cell(tmp_path, "bad", seed=1)
    bad.config.run_dir.parent.mkdir(parents=True)
    bad.config.run_dir.write_text("in the way")
    assert not run_cells([bad, good], 2)
    assert "failed: bad: output-dir" in capsys.readouterr().err
    [row] = read_rows(bad.config.run_dir.parent / "failures.csv")
    assert row["cell"] == "bad"
    assert row["reason"].startswith("output-dir = ")
    assert (row["seed"], row["device"], row["revision"]) == ("1", "cpu", rows_of.loaded_revision())
    assert row["processor"] == rows_of.machine()["processor"]
    bad.config.run_dir.unlink()
    assert run_cells([bad, good, small_cell(tmp_path, "also bad", seed=1)], 1)
    told = capsys.readouterr().out
    assert "1 of 2 cells are complete already" in told
    assert "another version of the library" not in told
    provenance = RunFolder(good.config.run_dir).provenance
    provenance.write(provenance.read() | {"code_sha256": "00"})
    assert run_cells([bad, good], 1)
    assert "1 of these were measured by another version of the lib" in capsys.readouterr().out


@pytest.mark.usefixtures("_asked_anew")
def test_a_cell_is_of_the_revision_that_ran_whatever_is_checked_out_meanwhile(
    tmp_path, monkeypatch
):
    run_rounds = run.run_federation

    def check_out_and_run_rounds(*federation: Any) -> Path:
        monkeypatch.setattr(rows_of, "revision", lambda: "checked out before the first round")
        return run_rounds(*federation)

    monkeypatch.setattr(run, "run_federation", check_out_and_run_rounds)
    monkeypatch.setattr(rows_of, "revision", lambda: "loaded")
    monkeypatch.setattr(rows_of, "_was_edited_after_import", lambda: False)
    cell = small_cell(tmp_path)
    assert run_cells([cell], 1)
    assert revision_of(cell) == "loaded"


def test_a_cell_that_goes_on_is_of_the_revisions_of_all_its_rounds(tmp_path, monkeypatch):
    cell = small_cell(tmp_path, num_server_rounds=3, checkpoint_every=1)
    # The first has no checkpoint when it is stopped: its rounds are run again.
    starts = [("first", 1), ("old", 2), ("newer", 3), ("newer", None)]
    for loaded, stops_at in starts:
        monkeypatch.setattr(run, "loaded_revision", lambda loaded=loaded: loaded)

        def stop(_: CellProgress, row: Round, last: int | None = stops_at) -> None:
            if row.round == last:
                raise ConfigError("stopped")

        monkeypatch.setattr(CellProgress, "__call__", stop)
        assert run_cells([cell], 1) == (stops_at is None)
    assert revision_of(cell) == "old and newer"
    assert run_cells([cell], 1, again=True)
    assert revision_of(cell) == "newer"


def revision_of(cell: Cell) -> str:
    measurement = read_measurement(cell.config.run_dir)
    assert measurement is not None
    return measurement.revision


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_has_the_threads_that_were_asked_for_and_its_row_says_how_many(tmp_path, jobs):
    cells = [small_cell(tmp_path, "first"), small_cell(tmp_path, "second", seed=1)]
    for threads in (1, 3):
        assert run_cells(cells, jobs, threads=threads, again=True)
        rows = [to_row(run) for run in find_measurements([tmp_path])]
        assert [row["threads"] for row in rows] == [str(threads)] * 2
        assert [from_row(row).threads for row in rows] == [str(threads)] * 2


def test_what_another_queue_runs_is_left_to_it(tmp_path, capsys):
    mine, taken = small_cell(tmp_path, "mine"), small_cell(tmp_path, "taken", seed=1)
    with claimed(taken):
        assert not run_cells([taken, mine], 1)
    told = capsys.readouterr()
    assert "left out: taken: another process is running this cell" in told.out
    assert "failed" not in told.err
    assert [find_result(cell) is not None for cell in (mine, taken)] == [True, False]
    assert run_cells([taken, mine], 1)


def test_a_cell_that_cannot_be_locked_has_failed_and_the_reason_names_the_file(tmp_path, capsys):
    cell = small_cell(tmp_path)
    lock = claims(tmp_path) / f"{cell.digest}.lock"
    lock.mkdir(parents=True)
    assert not run_cells([cell], 1)
    assert f"failed: cell: cannot write {lock}: " in capsys.readouterr().err
    lock.rmdir()
    assert run_cells([cell], 1)


@pytest.mark.parametrize("again", [False, True])
def test_what_another_queue_has_completed_meanwhile_is_not_run_once_more(tmp_path, again):
    first, second = small_cell(tmp_path, "first"), small_cell(tmp_path, "second", seed=1)
    run_cell(first)
    before = run_ids(first.config.run_dir)
    began = time.time() - 60.0 if again else None
    call = run_cell if began is None else partial(run_anew, began=began)
    for cell in (first, second):
        call(cell)
    assert run_ids(first.config.run_dir) == before
    assert len(run_ids(tmp_path)) == 2


@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt])
def test_what_ends_a_cell_that_is_measured_again_leaves_its_result(
    tmp_path, monkeypatch, end, capsys
):
    cell = small_cell(tmp_path)
    assert run_cells([cell], 1)
    [before] = run_ids(cell.config.run_dir)

    def fail(*_: object) -> None:
        raise end

    with monkeypatch.context() as patch:
        patch.setattr(CellProgress, "__call__", fail)
        if end is KeyboardInterrupt:
            with pytest.raises(GridInterrupted, match="not measured again are as they were"):
                run_cells([cell], 1, again=True)
        else:
            assert not run_cells([cell], 1, again=True)
            assert "failed: cell: RuntimeError" in capsys.readouterr().err
    assert run_ids(tmp_path) == {before}
    assert find_result(cell) == cell.config.run_dir
    assert run_cells([cell], 1, again=True)
    assert len(run_ids(tmp_path) - {before}) == 1
    assert find_result(cell) == cell.config.run_dir


@pytest.mark.parametrize("earlier_failed", [False, True])
def test_a_run_whose_last_round_failed_replaces_no_result_whose_last_round_did_not(
    tmp_path, monkeypatch, capsys, earlier_failed
):
    cell = small_cell(tmp_path)
    assert run_cells([cell], 1)
    if earlier_failed:
        fail_last_round(cell.config.run_dir)
    before = run_ids(tmp_path)
    run_federation = run.run_federation

    def failing(*arguments: Any) -> Path:
        run_dir = run_federation(*arguments)
        fail_last_round(run_dir)
        return run_dir

    monkeypatch.setattr(run, "run_federation", failing)
    assert not run_cells([cell], 1, again=True)
    stays = "failed: cell: the last round failed; the earlier result stays\n"
    assert (stays in capsys.readouterr().err) is not earlier_failed
    assert (run_ids(tmp_path) == before) is not earlier_failed
    assert find_result(cell) == cell.config.run_dir


def fail_last_round(run_dir: Path) -> None:
    summary = RunFolder(run_dir).summary
    summary.write(summary.read() | {"last_round_failed": True, "failed_rounds": 1, "rounds": 2})


def test_what_a_report_may_read_is_deleted_while_no_report_is_made(tmp_path, monkeypatch):
    cell = small_cell(tmp_path)
    run_cell(cell)
    elsewhere = tmp_path / "another group" / cell.config.run_dir.name
    elsewhere.parent.mkdir()
    cell.config.run_dir.rename(elsewhere)
    held = []
    rmtree = shutil.rmtree

    def noted(path: Path, **more: Any) -> None:
        if path == elsewhere:
            held.append(_is_held(claims(tmp_path) / "report.lock"))
        rmtree(path, **more)

    monkeypatch.setattr(shutil, "rmtree", noted)
    run_anew(cell, began=time.time())
    assert held == [True]
    assert (find_result(cell), elsewhere.exists()) == (cell.config.run_dir, False)


def test_a_kill_leaves_the_result_of_a_cell_that_is_measured_again(tmp_path):
    """Of what it had begun nothing counts, and the next start takes it away."""
    cell = small_cell(tmp_path)
    assert run_cells([cell], 1)
    ids = run_ids(cell.config.run_dir)
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert run_ids(cell.config.run_dir) == ids
    assert [measured.run_dir for measured in find_measurements([tmp_path])] == [cell.config.run_dir]
    assert run_cells([cell], 1, again=True)
    assert len(run_ids(tmp_path)) == 1
    assert not run_ids(tmp_path) & ids


KILLED = """
import os
import signal
import sys
from pathlib import Path

from fedif_studies.lab.run import CellProgress, run_cells
from tests.studies.lab.small import small_cell

CellProgress.__call__ = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run_cells([small_cell(Path(sys.argv[1]))], 1, again=True)
"""


@pytest.mark.all
def test_two_queues_at_once_run_each_cell_once(tmp_path):
    """Both have the same cells, each of them in two tables."""
    cells = [small_cell(tmp_path, name, seed=seed) for seed in range(2) for name in ("one", "two")]
    (tmp_path / "both.py").write_text(QUEUE)
    command = [sys.executable, str(tmp_path / "both.py"), str(tmp_path)]
    queues = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [queue.communicate() for queue in queues]
    assert [err for _, err in told if "Traceback" in err or "failed" in err] == []
    assert sum(out.count(", until ") for out, _ in told) >= 2
    folders = list(tmp_path.glob("group/*/summary.json"))
    assert len(folders) == 2
    assert all(find_result(cell) for cell in cells)


QUEUE = """
import sys
from pathlib import Path

from fedif_studies.lab.run import run_cells
from tests.studies.lab.small import full_disk, small_cell

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    names = [("one", 0), ("two", 0), ("one", 1), ("two", 1)]
    run_cells([small_cell(folder, name, seed=seed) for name, seed in names], 1)
"""


def test_a_full_disk_ends_a_cell_that_goes_on_where_there_is_room(tmp_path, capsys):
    cell = small_cell(tmp_path)
    with full_disk():
        assert not run_cells([cell], 1)
    told = capsys.readouterr().err
    assert "failed: cell: " in told
    assert "the failure could not be recorded: cannot write" in told
    assert run_cells([cell], 1)


def test_a_sweep_reports_its_cells_wherever_they_lie(tmp_path):
    """The second one's first cell is the first one's."""
    small = "num-clients = 5\nfraction-train = 0.4\nnum-server-rounds = 2\nlocal-epochs = 1\n"
    for name, strategies in (("one", ["fedavg"]), ("two", ["fedavg", "median"])):
        (tmp_path / f"{name}.toml").write_text(f"{small}device = 'cpu'\nstrategy = {strategies}\n")
        words = ["sweep", f"{tmp_path}/{name}.toml", "--output-dir", f"{tmp_path}/out"]
        told = sweep([*words, "--jobs", "1"])
    assert "1 of 2 cells are complete already\n" in told
    assert "The mean of the last ten rounds includes only the evaluated ones: 2.\n" in told
    rows = read_rows(tmp_path / "out" / "two" / "results.csv")
    assert [row["strategy"] for row in rows] == ["fedavg", "median"]
    words += ["--jobs", "1"]
    assert "2 of 2 cells are complete already; --again runs them again" in sweep(words)
    ids = run_ids(tmp_path)
    assert "complete already" not in sweep([*words, "--again"])
    assert len(run_ids(tmp_path)) == len(ids) == 2
    assert not run_ids(tmp_path) & ids
    assert not list((tmp_path / "out" / "one").glob("*/summary.json"))  # It lies with the second.


def test_a_home_in_the_name_of_an_output_folder_is_the_user_s(tmp_path, monkeypatch):
    """A folder that is called ``~`` is easily removed together with the user's home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    runs = []
    for seed in range(2):
        folder = tmp_path / f"run-{seed}"
        runs.append(str(write_result(folder, {"seed": seed, "run-name": "run"}, [0.5])))
    sweep(["compare", *runs, "--output-dir=~/compared"])
    assert (tmp_path / "home" / "compared" / "table.md").is_file()
    assert not (tmp_path / "~").exists()


def test_a_sweep_reads_and_writes_its_report_while_no_other_queue_does(tmp_path, monkeypatch):
    """Else one that ends first, and draws longer, writes an older table over a later one."""
    held = []

    def noting(module: ModuleType, name: str) -> None:
        call = getattr(module, name)

        def noted(*words: Any) -> Any:
            held.append((name, _is_held(claims(tmp_path / "out") / "report.lock")))
            return call(*words)

        monkeypatch.setattr(module, name, noted)

    noting(measurements, "read_measurement")
    noting(sweep_report, "report_sweep")
    small = "num-clients = 5\nfraction-train = 0.4\nnum-server-rounds = 1\nlocal-epochs = 1\n"
    (tmp_path / "one.toml").write_text(f"{small}device = 'cpu'\n")
    sweep(["sweep", f"{tmp_path}/one.toml", "--output-dir", f"{tmp_path}/out", "--jobs", "1"])
    assert held == [("read_measurement", True), ("report_sweep", True)]


def _is_held(path: Path) -> bool:
    try:
        FileLock(path).acquire(timeout=0).lock.release()
    except Timeout:
        return True
    return False


def test_a_sweep_says_which_cells_lack_a_run_and_which_share_one(tmp_path, monkeypatch):
    small = "num-clients = 5\nfraction-train = 0.4\nnum-server-rounds = 2\nlocal-epochs = 1\n"
    axes = "strategy = ['fedavg', 'median']\nlearning-rate = ['auto', 0.05]\n"
    spec = tmp_path / "mine.toml"
    spec.write_text(f"{small}device = 'cpu'\n{axes}")
    words = ["sweep", str(spec), "--output-dir", f"{tmp_path}/out", "--jobs", "1"]
    cells_of_sweep = read_sweep(spec, DEFAULTS, tmp_path / "out")
    *_, bad, _ = cells_of_sweep

    def run_and_edit(cell: Cell) -> None:
        spec.write_text("strategy = [")
        run_cell(cell)

    monkeypatch.setattr(run, "run_cell", run_and_edit)
    bad.config.run_dir.parent.mkdir(parents=True)
    bad.config.run_dir.write_text("in the way")
    assert "failed: strategy-median" in sweep(words, exit_code=1)
    page = (tmp_path / "out" / "mine" / "table.md").read_text()
    assert "Missing: 1 of 2 cells: strategy-median_learning-rate-auto_seed0.\n" in page
    assert "| strategy | seeds |" in page  # Of which one alone is measured.
    assert "The last round failed in" not in page
    [good] = {find_result(cell) for cell in cells_of_sweep} - {None}
    summary = RunFolder(good).summary
    summary.write(summary.read() | {"last_round_failed": True})
    failed = "The last round failed in 1 of 2 cells: strategy-fedavg_learning-rate-auto_seed0."
    assert failed in remarks_on(cells_of_sweep, [good])
    # By default the digits are learned at 0.05.
    assert "2 of 4 cells have the same settings as another cell, as far as results" in page


def sweep(words: list[str], exit_code: int = 0) -> str:
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == exit_code, told.output
    return told.output


def run_ids(folder: Path) -> set[str]:
    return {json.loads(path.read_text())["run_id"] for path in folder.rglob("provenance.json")}


def test_studies_take_held_out_labels_as_they_are_unless_they_say_otherwise():
    """As the rows of the arena and the factorial were measured."""
    small = {"num-clients": 3, "fraction-train": 1.0, "num-server-rounds": 1, "local-epochs": 1}
    told = []
    for more in ({}, {"validation.noise": 0.1}):
        with federated({**small, **more}) as folder:
            settings = folder.settings()
        told.append((settings["validation.noise"], settings["validation.vet"]))
    assert told == [("off", False), (0.1, False)]


def test_a_share_of_malicious_clients_that_is_nobody_s_is_no_attack(tmp_path):
    """Of three clients a tenth is none: what a run says of it is not heard among many."""
    settings = {"attack": "sign-flip", "malicious-fraction": 0.1, "num-clients": 3}
    told = "0 of 3 clients, so no client attacks"
    with pytest.raises(ConfigError, match=told), federated(settings):
        pass
    cells = [
        small_cell(tmp_path, name, attack=name, malicious_fraction=0.1, num_clients=3)
        for name in ("none", "sign-flip")
    ]
    assert remarks_on(cells, [])[1:] == [
        "There is an attack, but nobody is malicious in 1 of 2 cells: sign-flip."
    ]


def test_a_cell_says_how_far_it_is_and_until_when(capsys, monkeypatch):
    """A run that goes on after round 10 takes 20 s a round; a line every 30 s at most."""
    now = iter([0.0, *(5.0 + 20 * n for n in range(7))])
    progress = CellProgress("the cell", 16, clock=lambda: next(now))
    told = []
    monkeypatch.setattr(run, "time_in", lambda seconds: f"in {seconds:g} s")
    for number in range(10, 17):
        progress(Round(number))
        told.append(capsys.readouterr().out.strip())
    assert told == [
        *("", "", "the cell: round 12 of 16, until in 80 s", ""),
        *("the cell: round 14 of 16, until in 40 s", "", ""),
    ]


def test_a_running_cell_tells_its_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "SECONDS_BETWEEN_LINES", 0.0)
    assert run_cells([small_cell(tmp_path)], 1)
    assert "cell: round 1 of 2, until " in capsys.readouterr().out


RULE = """
class Own:
    gives_weights = True

    def __init__(self, power: float = {}):
        self.power = power

    def __call__(self, updates):
        from fedif_flower.round import Aggregation

        lengths = updates.squared_norms ** self.power
        return Aggregation(weights=lengths / lengths.sum())
"""


def test_a_sweep_measures_again_where_a_rule_of_ones_own_was_edited(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    small = "num-clients = 5\nfraction-train = 0.4\nnum-server-rounds = 1\nlocal-epochs = 1\n"
    (tmp_path / "sweep.toml").write_text(f"{small}device = 'cpu'\nstrategy = 'own_rule:Own'\n")

    def measured(power: float) -> tuple[str, list[Row]]:
        (tmp_path / "own_rule.py").write_text(RULE.format(power))
        sys.modules.pop("own_rule", None)  # As in a new process.
        importlib.invalidate_caches()
        words = ["sweep", f"{tmp_path}/sweep.toml", "--output-dir", f"{tmp_path}/out"]
        told = CliRunner().invoke(cli, [*words, "--jobs", "1"])
        assert told.exit_code == 0, told.output
        return told.output, read_rows(tmp_path / "out" / "sweep" / "results.csv")

    for power in (0.5, -0.5):
        output, [row] = measured(power)
        assert "[1/1, until" in output
        assert row["Own.power"] == str(power)
    output, [row] = measured(0.5)
    assert "1 of 1 cells are complete already" in output
    assert row["Own.power"] == "0.5"


def test_a_rule_that_is_edited_while_a_sweep_runs_is_refused_with_both_hashes(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_rule.py"
    path.write_text(RULE.format(0.5))
    cell = small_cell(tmp_path / "out", strategy="edited_rule:Own")
    before = hashes_here(["edited_rule"])["edited_rule"][:12]
    path.write_text(RULE.format(1.5))
    after = hashes_here(["edited_rule"])["edited_rule"][:12]
    assert not run_cells([cell], 1)
    told = f"edited_rule was edited: its SHA-256 was {before} and is {after} now"
    assert told in capsys.readouterr().err
    del sys.modules["edited_rule"]


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
