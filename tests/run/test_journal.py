from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.run.checkpoint import JournalEnd, append_lines, read_lines

cells = (
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.floats(allow_nan=False) | st.text()
)
lines = st.lists(st.dictionaries(st.text(), cells, max_size=3), max_size=3)


@given(st.lists(lines, max_size=4))
def test_what_is_read_is_what_was_written(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("journal") / "records.jsonl"
    ends = [(JournalEnd(), [])]
    for batch in batches:
        end, written = ends[-1]
        ends.append((append_lines(path, {"clients": batch}, end), written + batch))
    for end, written in ends:
        assert read_lines(path, end).get("clients", []) == written


def test_lines_of_a_checkpoint_that_was_not_completed_are_replaced(tmp_path):
    path = tmp_path / "records.jsonl"
    first = append_lines(path, {"rounds": [{"round": 1}]}, JournalEnd())
    append_lines(path, {"rounds": [{"round": 2, "lost": "x" * 100}]}, first)
    end = append_lines(path, {"rounds": [{"round": 2}]}, first)
    assert read_lines(path, end) == {"rounds": [{"round": 1}, {"round": 2}]}
    assert path.stat().st_size == end.size
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole.replace(b"1", b"3"), b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="SHA-256 differs"):
            read_lines(path, end)
