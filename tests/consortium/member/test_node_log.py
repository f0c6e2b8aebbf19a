from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta

import pytest

from fedif_consortium.evidence.chained_log import START, lines_after, read_log
from fedif_consortium.member.node_log import FILE, NodeLog
from fedif_flower.errors import EvidenceError, StorageError


def add(folder, *runs: int) -> list:
    """Open the log, add a line for each run, and return what it says."""
    with closing(NodeLog(folder)) as log:
        for run in runs:
            log.append(run=run, app="ä", reason="no\nsuch", bytes=9, epsilon=0.5)
    return read_log(folder / FILE)


def test_a_line_says_all_that_was_asked_for(tmp_path):
    (entry,) = add(tmp_path, 3)
    assert (tmp_path / FILE).read_text().startswith(f"{entry.pop('hash')} ")
    assert datetime.fromisoformat(entry.pop("time")).utcoffset() == timedelta(0)
    assert entry == {"run": 3, "app": "?", "reason": "no?such", "bytes": 9, "epsilon": 0.5}
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_no_node_goes_on_a_log_that_was_changed_but_on_one_whose_end_was_torn(tmp_path):
    add(tmp_path, 0, 1)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(EvidenceError, match=r"log\.txt ends in half a line"):
        read_log(path)
    assert [entry["run"] for entry in add(tmp_path, 7)] == [0, 7]
    path.write_text(path.read_text().replace('"bytes":9', '"bytes":8', 1))
    with pytest.raises(EvidenceError, match=r"line 1 of .* does not"):
        NodeLog(tmp_path)


def test_a_hash_that_was_written_down_shows_a_cut_at_the_end(tmp_path):
    entries = add(tmp_path, 0, 1, 2)
    assert [lines_after(entries, one) for one in (START, entries[1]["hash"])] == [3, 1]
    with pytest.raises(EvidenceError, match="no line has the hash"):
        lines_after(entries[:1], entries[1]["hash"])  # A shorter log is a log too.


def test_one_process_holds_a_log(tmp_path):
    with closing(NodeLog(tmp_path)), pytest.raises(StorageError, match="in use by another node"):
        NodeLog(tmp_path)
    add(tmp_path, 1)
