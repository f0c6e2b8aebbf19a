"""A run's folder: names, columns, files that are whole or not there, its lock."""

from __future__ import annotations

import errno
import hashlib
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock

from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.run import rows
from fedif_flower.run.folder import RunFolder, files_of_rounds, hold_directory, is_held
from fedif_flower.run.kept_updates import KeepUpdates
from fedif_flower.run.part import RunContext
from fedif_flower.run.provenance import tensors_hash
from fedif_flower.run.record_files import JsonFile, Table
from fedif_flower.run.rows import read_rows, read_table
from tests.run.resuming import run, run_config


def test_a_table_grows_by_lines_and_leaves_empty_what_is_not_there(tmp_path):
    table = Table(tmp_path / "t.csv", ("round", "share"))
    assert table.read() == []
    table.begin(["more"])
    table.append([{"round": 1, "share": 0.1, "other": "left out"}, {"round": 2, "more": True}])
    table.append([{"round": 3, "share": float("nan")}])
    assert table.path.read_bytes() == b"round,share,more\n1,0.1,\n2,,1\n3,nan,\n"
    assert table.read()[1] == {"round": "2", "share": "", "more": "1"}


def test_a_last_line_is_replaced_and_the_others_stay_as_they_are(tmp_path):
    table = Table(tmp_path / "t.csv", ("round", "reason"))
    table.begin(["loss"])
    table.append([{"round": 1, "reason": "=a", "loss": -0.5}, {"round": 2, "reason": "b"}])
    table.replace_last({"round": 2, "reason": "-b", "loss": 0.25})
    assert table.path.read_text() == "round,reason,loss\n1,'=a,-0.5\n2,'-b,0.25\n"


def test_a_last_line_that_a_crash_cut_off_is_not_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("round,share\n1,0.5\n2")
    assert Table(path, ()).read() == [{"round": "1", "share": "0.5"}]
    assert read_table(path, more=True).to_pylist() == [{"round": 1, "share": 0.5}]
    path.write_text("round,share\n1,0.5\n2,0.2")  # It was 0.25: each line is written with its end.
    assert Table(path, ()).read() == [{"round": "1", "share": "0.5"}]
    assert read_table(path, more=True).to_pylist() == [{"round": 1, "share": 0.5}]
    # Of a file that a person writes the last line may have none.
    assert [row["round"] for row in read_rows(path)] == ["1", "2"]


def test_no_thread_holds_what_is_python_s_after_a_table_is_read(tmp_path, monkeypatch):
    """It would let go of it after Python's end, which aborts the process: status 134."""
    num_held = 0
    for _ in range(300):
        content = bytearray(b"round,share\n" + b"1,0.5\n" * 50)
        monkeypatch.setattr(rows, "_whole_lines", lambda path, content=content: content)
        assert len(read_table(tmp_path / "t.csv", more=True)) == 50
        try:
            content.append(0)  # Refused while anybody reads it.
        except BufferError:
            num_held += 1
    assert num_held == 0


NOT_WHOLE = {
    "2\n3,0.125\n": "fewer cells than columns",
    "2\n": "fewer cells than columns",
    "2,0.25,7\n3,0.125\n": "more cells than columns",
}


@pytest.mark.parametrize(("rest", "words"), NOT_WHOLE.items())
def test_no_other_line_is_left_out_in_silence(tmp_path, rest, words):
    path = tmp_path / "t.csv"
    path.write_text(f"round,share\n1,0.5\n{rest}")
    with pytest.raises(ConfigError, match=rf"t\.csv, line 3: {words}"):
        Table(path, ()).read()
    with pytest.raises(ConfigError, match=r"t\.csv cannot be read: .*Expected 2 columns"):
        read_table(path, more=True)


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    """The last one would count, without a word."""
    path = tmp_path / "names.csv"
    path.write_text("client_id,name,name\n1000,ada,mallory\n")
    with pytest.raises(
        ConfigError, match=r"names\.csv, line 1: the column 'name' is there 2 times"
    ):
        read_rows(path)


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
    for name in (*reversed(results), "own.log", "state.json", ".model.pt.0a1b2c3d"):
        (tmp_path / name).write_text("")
    assert folder.results() == results
    folder.begin()
    assert {path.name for path in tmp_path.iterdir()} == {"own.log", "updates"}


def test_what_killed_processes_were_writing_goes_as_a_run_begins(tmp_path):
    folder = RunFolder(tmp_path)
    half = ["attempt-1.0a1b2c3d/rounds.csv", "statement.0a1b2c3d/members/001.html"]
    half += ["undelivered.json.0a1b2c3d", "state.json.0a1b2c3d", "model.pt.0a1b2c3d"]
    places = [tmp_path / f".{name}" for name in half]
    places += [folder.updates / f".{name}.0a1b2c3d" for name in ("round-000001.pt", "sent-000001")]
    for path in (*places, folder.updates / ".notes.txt", folder.updates / "round-000001.pt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    folder.begin(last_round=1)
    assert {path.name for path in tmp_path.iterdir()} == {"updates"}
    assert {path.name for path in folder.updates.iterdir()} == {".notes.txt", "round-000001.pt"}


HOLD = """
import sys, time
from pathlib import Path
from fedif_flower.run.folder import hold_directory
with hold_directory(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_holder_is_named_and_a_killed_one_lets_go(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        named = rf"in use by process {holder.pid} on {socket.gethostname()} since 20\d\d-"
        with pytest.raises(StorageError, match=named), hold_directory(tmp_path / "run"):
            pass
        holder.kill()
    with hold_directory(tmp_path / "run"):
        pass


def test_a_run_begins_although_another_process_asks_at_this_moment_who_is_there(tmp_path):
    asking = FileLock(tmp_path / ".run.lock", thread_local=False)
    asking.acquire()
    Timer(0.02, asking.release).start()
    with hold_directory(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_a_folder_that_went_read_only_hides_no_error_and_is_let_go(tmp_path, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def write() -> None:
        with hold_directory(tmp_path / "run"):
            patch.setattr(Path, "unlink", refused)
            raise StorageError("cannot write rounds.csv: Read-only file system")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match=r"write rounds\.csv"):
        write()
    with hold_directory(tmp_path / "run"):
        pass


KEPT = {"attribution": "simpson", "updates.keep": True}


def test_a_disk_that_cannot_hold_them_is_an_error_before_training(tmp_path, monkeypatch):
    free = shutil._ntuple_diskusage(2**30, 0, 2 * 2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    with pytest.raises(ConfigError, match=r"2.0 MiB free, .* and what is kept of rounds need \d+"):
        run(run_config(tmp_path, **KEPT, num_server_rounds=1000))
    assert not (tmp_path / "run" / "updates").exists()


def test_a_disk_that_lacks_a_byte_does_not_read_as_if_it_had_room(tmp_path, monkeypatch):
    """A mebibyte and the model, of less than another one, are needed."""
    free = shutil._ntuple_diskusage(2**30, 0, 2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    with pytest.raises(ConfigError, match=r"1\.0 MiB free, .* need 1\.[1-9] MiB"):
        run(run_config(tmp_path, checkpoint_every=0))


@pytest.mark.parametrize(
    ("paced", "most_replies"),
    [
        ({}, 5),
        ({"pace.ask-more": 3.0}, 15),
        ({"pace.ask-more": 9.0}, 20),
        ({"pace.quorum": 4}, 4),
        ({"pace.quorum": 4, "pace.grace": 9.0}, 5),
        ({"pace.rounds": "buffered", "pace.buffer-size": 10}, 10),
    ],
)
def test_room_is_asked_for_as_many_updates_as_rounds_of_a_quarter_of_twenty_have(
    tmp_path, paced, most_replies
):
    settings = {"num_clients": 20, "fraction_train": 0.25, "num_server_rounds": 100}
    config = run_config(tmp_path, **KEPT, **settings, **paced)
    loaded = SimpleNamespace(config=config)
    kept = KeepUpdates().build(RunContext(loaded, None, RunFolder(tmp_path), "id"))
    assert kept.copies == 100 * (most_replies + 2)  # The models before and after, too.


def test_what_an_earlier_attempt_left_of_later_rounds_is_removed(tmp_path):
    folder = RunFolder(tmp_path)
    folder.updates.mkdir()
    names = ["round-000001.pt", "round-000002.pt", "sent-000001.npz", "sent-000002.npz"]
    for name in (*names, "notes.txt"):
        (folder.updates / name).write_text("")
    folder.begin(last_round=1)
    left = {path.name for path in folder.updates.iterdir()}
    assert left == {"round-000001.pt", "sent-000001.npz", "notes.txt"}
    folder.begin()
    assert {path.name for path in folder.updates.iterdir()} == {"notes.txt"}


def test_a_run_that_keeps_no_updates_has_none_of_the_run_that_it_replaces(tmp_path):
    """A statement would take them for its own, and name the files."""
    folder = RunFolder(run(run_config(tmp_path, **KEPT, num_server_rounds=2)))
    assert list(files_of_rounds(folder.updates)) == [1, 2]
    run(run_config(tmp_path, num_server_rounds=2, seed=1, overwrite=True))
    assert list(files_of_rounds(folder.updates)) == []


def test_a_run_that_goes_on_keeps_the_updates_of_the_rounds_that_count(tmp_path):
    """The checkpoint is of round 2: rounds 3 to 5 are done again, and keep nothing."""
    kept = run_config(tmp_path, **KEPT)
    folder = RunFolder(run(kept, kill_at=3))
    assert list(files_of_rounds(folder.updates)) == [1, 2, 3]
    run(run_config(tmp_path, attribution="simpson", resume="auto"))
    assert list(files_of_rounds(folder.updates)) == [1, 2]


def test_a_hash_is_of_types_shapes_and_values_whatever_the_layout():
    values = torch.arange(24.0).reshape(1, 2, 3, 4)
    as_channels_last = values.clone(memory_format=torch.channels_last)
    assert tensors_hash([values]) == tensors_hash([as_channels_last])
    flat = values.numpy().tobytes()
    told = hashlib.sha256(b"torch.float32 (1, 2, 3, 4)\n" + flat).hexdigest()
    assert tensors_hash([values]) == told
    others = [values.double(), values.reshape(2, 12), values + 1, values.bfloat16()]
    assert len({tensors_hash([v]) for v in [values, *others]}) == 5
