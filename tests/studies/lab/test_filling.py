"""Rows of studies: each is measured once, says what measured it, and none is lost."""

from __future__ import annotations

import inspect
import os
import platform
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import typer

import fedif_studies
from fedif_flower.errors import ConfigError
from fedif_flower.run.provenance import package_version
from fedif_flower.run.rows import read_rows
from fedif_studies import commands, coverage, drawn, estimators, factorial, games, twins
from fedif_studies import rows as rows_of
from fedif_studies.benchmarks import common
from fedif_studies.held_out import __main__ as held_out
from fedif_studies.lab import filling
from fedif_studies.lab.commands import run_study
from fedif_studies.lab.filling import fill, missing
from fedif_studies.lab.parallel import GridInterrupted
from fedif_studies.rows import NO_SEED, Row, add_rows, loaded_revision, put_derived
from tests.studies.lab.small import full_disk

CELLS: list[Row] = [{"name": name, "share": 0.5, "seed": 0} for name in "abc"]
ORIGIN = {"revision": "abc", "seed": 0}


@pytest.fixture(autouse=True)
def _revision(monkeypatch):
    monkeypatch.setattr(filling, "require_committed", lambda: None)
    monkeypatch.setattr(filling, "loaded_revision", lambda: "abc")


def doubled(cell: Row) -> list[Row]:
    if cell["name"] == "b":
        raise RuntimeError("out of memory")
    return [{"figure": cell["share"]}, {"figure": 2}]


def killed(cell: Row) -> list[Row]:
    os.kill(os.getpid(), signal.SIGKILL)
    return doubled(cell)


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_has_a_row_is_not_measured_and_an_error_ends_its_own_cell(tmp_path, capsys, jobs):
    path = tmp_path / "rows.csv"
    path.write_text("name,share,seed,figure\na,0.50,0,7\n")
    assert missing(path, CELLS) == CELLS[1:]
    assert not fill(path, CELLS, doubled, jobs=jobs)
    assert "failed: b, 0.5, 0: RuntimeError('out of memory')" in capsys.readouterr().err
    rows = [(row["name"], row["figure"], row["revision"]) for row in read_rows(path)]
    # The revision is that of the process that measured: with one job, of this one.
    measured_by = "abc" if jobs == 1 else loaded_revision()
    assert rows == [("a", "7", ""), ("c", "0.5", measured_by), ("c", "2", measured_by)]
    assert missing(path, CELLS) == [CELLS[1]]


def none_of_b(cell: Row) -> list[Row]:
    return [] if cell["name"] == "b" else [{"figure": 1}]


def test_a_cell_of_which_no_row_came_has_failed(tmp_path, capsys):
    """It would be measured again and again, and the command say that all is there."""
    path = tmp_path / "rows.csv"
    assert not fill(path, CELLS, none_of_b)
    assert "failed: b, 0.5, 0: the measurement returned no rows\n" in capsys.readouterr().err
    assert [row["name"] for row in read_rows(path)] == ["a", "c"]


def test_names_that_differ_by_case_alone_are_two_cells(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("rule,own,seed\nmine:trim,true,0\nmine:Mean,True,0\n")
    rules: list[Row] = [{"rule": f"mine:{name}", "own": True} for name in ("trim", "Trim", "Mean")]
    assert missing(path, rules) == [rules[1]]


def test_names_that_look_like_numbers_are_names(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("rule,share,seed\nnan,0.5,0\n1_0,0.5,0\n")
    cells: list[Row] = [
        {"rule": rule, "share": 0.50, "seed": 0} for rule in ("nan", "1_0", "10", float("nan"))
    ]
    assert missing(path, cells) == [cells[2]]


def killed_once(cell: Row) -> list[Row]:
    return killed(cell) if cell["name"] == "a" else [{"figure": 1}]


def test_a_killed_process_takes_no_other_cell_with_it(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    assert not fill(path, CELLS, killed_once, jobs=2)
    assert capsys.readouterr().err.count("failed: ") == 1
    assert [row["name"] for row in read_rows(path)] == ["b", "c"]
    assert missing(path, CELLS) == CELLS[:1]


def stops_the_grid(cell: Row) -> list[Row]:
    with TemporaryDirectory() as folder:
        Path(folder, "large").write_text("x")
        if cell["name"] == "a":
            os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
    return [{"figure": 1}]


def test_a_grid_that_is_stopped_leaves_no_temporary_files(tmp_path, monkeypatch):
    path, folder = tmp_path / "rows.csv", tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    with pytest.raises(GridInterrupted, match="3 cells are left"):
        fill(path, CELLS, stops_the_grid, jobs=2)
    assert list(folder.iterdir()) == []


def test_a_grid_that_is_killed_leaves_no_process(tmp_path):
    """It would wait for its next cell forever, and keep its memory."""
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py")]
    # The call returns once no process has the pipes any more.
    grid = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert grid.returncode == -signal.SIGKILL


KILLED = """
import os
import signal
import time

from fedif_studies.lab.parallel import carry_out


def kills_the_grid(cell):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(300)


if __name__ == "__main__":
    carry_out(["a"], kills_the_grid, keep=print, name_of=str, jobs=2)
"""


def test_rows_wait_until_a_full_disk_has_room(tmp_path, capsys):
    path, ended = tmp_path / "rows.csv", []
    path.write_text("name,share,seed,figure,revision\nd,0.5,0,7,old\n")

    def measured(cell: Row) -> list[Row]:
        if cell["name"] == "a":
            full = full_disk()
            full.__enter__()
            ended.append(full)
        if cell["name"] == "c":
            assert [row["name"] for row in read_rows(path)] == ["d"]  # As it was.
            ended.pop().__exit__(None, None, None)
        return [{"figure": cell["name"]}]

    assert fill(path, CELLS, measured)
    assert "2 cells' rows wait: cannot write" in capsys.readouterr().err
    assert [row["figure"] for row in read_rows(path)] == ["7", "a", "b", "c"]


def test_rows_that_a_disk_never_takes_are_printed(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    with full_disk():
        assert not fill(path, CELLS[:1], plain)
    told = capsys.readouterr().err
    assert f"not written into {path}:\nname,share,seed,figure,revision,processor\n" in told
    assert "a,0.5,0,a,abc" in told
    assert "a,0.5,0,second,abc" in told


def test_rows_without_a_seed_are_refused_but_printed(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    with pytest.raises(ConfigError, match="has no seed"):
        fill(path, [{"name": "a"}], plain)
    assert "a,second,abc" in capsys.readouterr().err


def test_those_who_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [{"of": index % 3, f"own {index % 3}": index, **ORIGIN} for index in range(30)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda row: add_rows(path, [row]), rows))
    found = read_rows(path)
    assert sorted(int(row[f"own {row['of']}"]) for row in found) == list(range(30))


def test_a_cell_that_another_study_measures_meanwhile_has_its_rows_once(tmp_path):
    path = tmp_path / "rows.csv"

    def measure(cell: Row) -> list[Row]:
        if cell["name"] == "a" and not path.exists():
            fill(path, CELLS[:1], plain)  # The other study, which is done first.
        return plain({**cell, "name": "later"})

    assert fill(path, CELLS[:2], measure)
    figures = [(row["name"], row["figure"]) for row in read_rows(path)]
    assert figures == [("a", "a"), ("a", "second"), ("b", "later"), ("b", "second")]


def plain(cell: Row) -> list[Row]:
    return [{"figure": cell["name"]}, {"figure": "second"}]


def test_a_command_that_finds_all_rows_says_so_and_measures_them_again_where_asked(
    tmp_path, capsys, monkeypatch
):
    path, before = tmp_path / "rows.csv", "name,share,seed,figure,revision\n"
    before += "".join(f"{name},0.5,0,7,old\n" for name in "abcd")
    path.write_text(before)

    def uncommitted() -> None:
        raise AssertionError("it is of no matter what the code is: nothing is measured")

    with monkeypatch.context() as patch:
        patch.setattr(filling, "require_committed", uncommitted)
        assert fill(path, [], plain)  # --seeds 0
        assert capsys.readouterr().out == ""
        assert fill(path, CELLS, plain)
    nothing = f"nothing is measured: {path} has all; --again measures them again"
    assert f"3 of 3 cells have a row\n{nothing}" in capsys.readouterr().out
    assert path.read_text() == before
    assert fill(path, CELLS, plain, again=True)
    rows = [(row["name"], row["figure"], row["revision"]) for row in read_rows(path)]
    assert rows == [
        ("d", "7", "old"),  # No cell of this call.
        *((name, figure, "abc") for name in "abc" for figure in (name, "second")),
    ]


STUDIES = (coverage, drawn, estimators, factorial, games, twins, held_out)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.__name__)
def test_a_study_of_which_a_cell_failed_ends_with_another_status_than_0(study, monkeypatch):
    monkeypatch.setattr(study, "fill", lambda *_, **__: False)
    with pytest.raises(typer.Exit) as ended:
        study.main()
    assert ended.value.exit_code == 1


@pytest.mark.parametrize(
    "command",
    [
        *(commands.arena, commands.audit, commands.paper, commands.sweep),
        *(study.main for study in STUDIES),
    ],
)
def test_every_command_that_adds_rows_can_measure_them_again(command):
    assert inspect.signature(command).parameters["again"].default is False


def test_an_error_of_a_study_is_a_line(monkeypatch, capsys):
    def study(cells: int = 3) -> None:
        raise GridInterrupted(f"stopped: {cells} cells are left")

    monkeypatch.setattr(sys, "argv", ["study", "--cells", "7"])
    with pytest.raises(SystemExit) as ended:
        run_study(study)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: stopped: 7 cells are left\n"


def test_every_study_is_started_so():
    programs = []
    for path in Path(fedif_studies.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if "__main__" in text:
            programs.append(path)
            assert "typer.run(" not in text, path.name
    assert len(programs) > 10


def test_an_error_leaves_the_rows_that_were_to_be_measured_again(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("name,share,seed,figure,revision\nb,0.5,0,7,old\n")
    assert not fill(path, CELLS, doubled, again=True)
    assert ("b", "7") in [(row["name"], row["figure"]) for row in read_rows(path)]


def interrupted(cell: Row) -> list[Row]:
    if cell["name"] == "b":
        raise KeyboardInterrupt
    return [{"figure": 1}]


def test_a_grid_that_is_stopped_while_it_measures_again_leaves_the_others_as_they_were(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("name,share,seed,figure,revision\na,0.5,0,7,old\nb,0.5,0,7,old\n")
    with pytest.raises(GridInterrupted, match="that were not measured again are as they were"):
        fill(path, CELLS, interrupted, again=True)
    rows = {row["name"]: row["revision"] for row in read_rows(path)}
    assert rows == {"a": "abc", "b": "old"}


@pytest.mark.parametrize("name", ["revision", "seed"])
@pytest.mark.parametrize("value", [None, ""])
def test_no_row_is_written_that_does_not_say_what_measured_it(tmp_path, name, value):
    path = tmp_path / "rows.csv"
    good = {"figure": 1, **ORIGIN}
    with pytest.raises(ConfigError, match=rf"rows\.csv: the row with figure = 1.* has no {name}"):
        add_rows(path, [good, {**good, name: value}])
    assert not path.exists()
    add_rows(path, [good, {**good, "seed": NO_SEED}])
    assert [row["seed"] for row in read_rows(path)] == ["0", "none"]


@pytest.mark.parametrize(
    ("last_line", "figures"), [("abc,0,1", ["1", "2"]), ("abc,0", ["2"])], ids=["whole", "cut off"]
)
def test_a_row_is_not_glued_to_a_last_line_without_an_end(tmp_path, last_line, figures):
    path = tmp_path / "rows.csv"
    path.write_text(f"revision,seed,figure\n{last_line}")
    add_rows(path, [{**ORIGIN, "figure": 2}])
    assert [row["figure"] for row in read_rows(path)] == figures
    assert path.read_text().endswith("\nabc,0,2\n")


def test_a_file_that_a_spreadsheet_wrote_keeps_its_columns(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("revision,seed,figure\r\nabc,0,1\r\n", encoding="utf-8-sig")
    add_rows(path, [{**ORIGIN, "figure": 2}])
    assert path.read_text() == "revision,seed,figure\nabc,0,1\nabc,0,2\n"


def test_rows_that_follow_from_others_need_no_origin_of_their_own(tmp_path):
    path = tmp_path / "means.csv"
    for mean in (1, 2):
        put_derived(path, [{"mean": mean}])
    assert read_rows(path) == [{"mean": "2"}]


@pytest.mark.usefixtures("_asked_anew")
def test_a_benchmark_s_rows_say_what_measured_them(tmp_path, monkeypatch):
    checked_out = iter(["loaded", "committed while it ran"])
    monkeypatch.setattr(rows_of, "revision", lambda: next(checked_out))
    monkeypatch.setattr(rows_of, "_was_edited_after_import", lambda: False)
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "run_study", lambda benchmark: benchmark())

    def benchmark() -> None:
        figure = common.Figure("norm", 1.0, 2.0, "ms", 0.5, "")
        common.report("Norms", "norms", [figure], write=True, full=False)

    common.run_benchmark(benchmark)
    (row,) = read_rows(tmp_path / "bench-quick-norms.csv")
    assert (row["revision"], row["seed"]) == ("loaded", "0")


@pytest.mark.usefixtures("_asked_anew")
@pytest.mark.parametrize(
    ("checked_out", "seconds_after_import", "loaded"),
    [
        ("abc", -1, "abc"),
        ("abc", 1, "abc-changed"),
        ("abc-changed", 1, "abc-changed"),
    ],
)
def test_code_that_was_edited_after_its_import_is_of_no_revision(
    tmp_path, monkeypatch, checked_out, seconds_after_import, loaded
):
    file = tmp_path / "fedif_flower" / "rule.py"
    file.parent.mkdir()
    file.touch()
    written_at = rows_of._LOADED_AT + seconds_after_import
    os.utime(file, (written_at, written_at))
    monkeypatch.setattr(rows_of, "RESULTS", tmp_path / "docs" / "results")
    monkeypatch.setattr(rows_of, "revision", lambda: checked_out)
    assert rows_of.loaded_revision() == loaded


def test_importing_the_rows_of_studies_starts_no_process(monkeypatch):
    def refuse(*command: object, **_: object) -> None:
        raise AssertionError(f"a process: {command}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert runpy.run_path(rows_of.__file__)["NO_SEED"] == NO_SEED


def test_another_project_around_an_installed_package_is_none_of_its_revision(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "lib" / "fedif_flower").mkdir(parents=True)
    (tmp_path / "lib" / "fedif_flower" / "installed.py").touch()
    monkeypatch.setattr(rows_of, "RESULTS", tmp_path / "lib" / "docs" / "results")
    monkeypatch.setattr(rows_of, "_CPUS", tmp_path / "not on this system")
    rows_of.require_committed()
    assert rows_of.revision() == package_version()
    assert rows_of.machine()["processor"] == platform.machine()
