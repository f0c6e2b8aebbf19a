from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from fedif_consortium.evidence.chained_log import START
from fedif_consortium.member.node_log import NodeLog, read_node_log
from fedif_flower.errors import EvidenceError, StorageError

NOON = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)


def opened(folder) -> NodeLog:
    return NodeLog(folder, now=lambda: NOON)


def add(log: NodeLog, run: int, **other) -> None:
    line = {"direction": "in", "app": "a/b", "kind": "train", "bytes": 9, "digest": "00ff"}
    log.append(**(line | {"run": run, "decision": "passed"} | other))


def written(folder, lines=12):
    with opened(folder) as log:
        for run in range(lines):
            add(log, run)
        return log.head


def test_a_line_says_all_that_was_asked_for(tmp_path):
    with opened(tmp_path) as log:
        add(log, 3, direction="out", decision="refused", reason="no\nsuch", app="ä", epsilon=0.5)
    (entry,) = read_node_log(tmp_path).entries
    assert entry == {
        "time": "2026-11-23T12:00:00+00:00",
        "direction": "out",
        "run": 3,
        "app": "?",
        "kind": "train",
        "bytes": 9,
        "digest": "00ff",
        "decision": "refused",
        "reason": "no?such",
        "epsilon": 0.5,
    }
    assert (tmp_path / "log.txt").stat().st_mode & 0o077 == 0


def test_the_chain_runs_on_over_restarts(tmp_path):
    head = START
    for run in range(12):
        with opened(tmp_path) as log:
            assert log.head == head
            add(log, run)
            head = log.head
    found = read_node_log(tmp_path)
    assert [entry["run"] for entry in found.entries] == list(range(12))
    assert found.head == head
    assert written(tmp_path / "again") == head


def cut(path, lines):
    kept = path.read_text().splitlines(keepends=True)[:lines]
    path.write_text("".join(kept))


def without(path, number):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: number - 1] + lines[number:]))


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        pytest.param(lambda path: without(path, 3), "line 3 of .* does not", id="a line"),
        pytest.param(lambda path: without(path, 1), "line 1 of .* does not", id="its first"),
        pytest.param(
            lambda path: path.write_bytes(path.read_bytes()[:-9]),
            "log.txt ends in half a line",
            id="half a line",
        ),
        pytest.param(
            lambda path: path.write_text(path.read_text().replace('"bytes":9', '"bytes":8', 1)),
            "line 1 of .* does not",
            id="a changed figure",
        ),
    ],
)
def test_what_was_removed_or_changed_is_named(tmp_path, damage, found):
    written(tmp_path)
    assert len(read_node_log(tmp_path).entries) == 12
    damage(tmp_path / "log.txt")
    with pytest.raises(EvidenceError, match=found):
        read_node_log(tmp_path)


def test_a_hash_that_was_written_down_shows_a_cut_at_the_end(tmp_path):
    head = written(tmp_path)
    assert read_node_log(tmp_path).lines_after(head) == 0
    assert read_node_log(tmp_path).lines_after(START) == 12
    with opened(tmp_path) as log:
        add(log, 12)
    assert read_node_log(tmp_path).lines_after(head) == 1
    cut(tmp_path / "log.txt", 11)
    found = read_node_log(tmp_path)  # A shorter log is a log too.
    with pytest.raises(EvidenceError, match=f"no line has the hash '{head}'"):
        found.lines_after(head)


def test_a_node_does_not_go_on_a_log_that_was_changed(tmp_path):
    written(tmp_path)
    without(tmp_path / "log.txt", 1)
    with pytest.raises(EvidenceError, match="line 1 of"):
        opened(tmp_path)


def test_half_a_line_of_a_power_cut_is_written_over(tmp_path):
    written(tmp_path, 2)
    path = tmp_path / "log.txt"
    path.write_bytes(path.read_bytes()[:-5])
    with opened(tmp_path) as log:
        add(log, 7)
    assert [entry["run"] for entry in read_node_log(tmp_path).entries] == [0, 7]


def test_one_process_holds_a_log(tmp_path):
    with opened(tmp_path), pytest.raises(StorageError, match="in use by another node"):
        opened(tmp_path)
    opened(tmp_path).close()


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from fedif_flower.errors import StorageError
from fedif_consortium.member.node_log import NodeLog
line = dict(direction="in", app="a", kind="train", bytes=9, digest="00ff", decision="passed")
log = NodeLog(Path(sys.argv[1]))
log.append(run=0, **line)
size = (log.folder / "log.txt").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))
try:
    log.append(run=1, **line)
except StorageError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(run=2, **line)
"""


def test_a_full_disk_is_an_error_and_leaves_no_half_line(tmp_path):
    pytest.importorskip("resource", reason="no file-size limits on this system")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert f"cannot write {tmp_path / 'log.txt'}" in done.stdout
    assert [entry["run"] for entry in read_node_log(tmp_path).entries] == [0, 2]
