from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta

import pytest

from fedif_consortium.evidence.chained_log import START, lines_after, read_log
from fedif_consortium.member.node_log import NodeLog
from fedif_flower.errors import EvidenceError, StorageError


def opened(folder):
    return closing(NodeLog(folder))


def add(log: NodeLog, run: int, **other) -> None:
    line = {"direction": "in", "app": "a/b", "kind": "train", "bytes": 9, "digest": "00ff"}
    log.append(**(line | {"run": run, "decision": "passed"} | other))


def written(folder, lines=12):
    with opened(folder) as log:
        for run in range(lines):
            add(log, run)
    return read_log(folder / "log.txt")[-1]["hash"]


def test_a_line_says_all_that_was_asked_for(tmp_path):
    with opened(tmp_path) as log:
        add(log, 3, direction="out", decision="refused", reason="no\nsuch", app="ä", epsilon=0.5)
    (entry,) = read_log(tmp_path / "log.txt")
    assert (tmp_path / "log.txt").read_text().startswith(f"{entry.pop('hash')} ")
    assert datetime.fromisoformat(entry.pop("time")).utcoffset() == timedelta(0)
    assert entry == {
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


def without(path, number):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: number - 1] + lines[number:]))


def test_no_node_goes_on_a_log_that_was_changed(tmp_path):
    written(tmp_path)
    path = tmp_path / "log.txt"
    path.write_text(path.read_text().replace('"bytes":9', '"bytes":8', 1))
    with pytest.raises(EvidenceError, match=r"line 1 of .* does not"):
        NodeLog(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(EvidenceError, match=r"log\.txt ends in half a line"):
        read_log(path)


def test_a_hash_that_was_written_down_shows_a_cut_at_the_end(tmp_path):
    head = written(tmp_path)
    assert lines_after(read_log(tmp_path / "log.txt"), head) == 0
    assert lines_after(read_log(tmp_path / "log.txt"), START) == 12
    with opened(tmp_path) as log:
        add(log, 12)
    assert lines_after(read_log(tmp_path / "log.txt"), head) == 1
    for _ in range(2):
        without(tmp_path / "log.txt", 12)
    with pytest.raises(EvidenceError, match=f"no line has the hash '{head}'"):
        lines_after(read_log(tmp_path / "log.txt"), head)  # A shorter log is a log too.


def test_half_a_line_of_a_power_cut_is_written_over(tmp_path):
    written(tmp_path, 2)
    path = tmp_path / "log.txt"
    path.write_bytes(path.read_bytes()[:-5])
    with opened(tmp_path) as log:
        add(log, 7)
    assert [entry["run"] for entry in read_log(tmp_path / "log.txt")] == [0, 7]


def test_one_process_holds_a_log(tmp_path):
    with opened(tmp_path), pytest.raises(StorageError, match="in use by another node"):
        NodeLog(tmp_path)
    NodeLog(tmp_path).close()
