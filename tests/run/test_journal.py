from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.run.journal import Journal, JournalEnd, read_lines

cells = (
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.floats(allow_nan=False) | st.text()
)
lines = st.lists(st.dictionaries(st.text(), cells, max_size=3), max_size=3)


def kept(journal: Journal, **tables) -> JournalEnd:
    end = journal.append(tables)
    journal.keep(end)
    return end


@given(st.lists(lines, max_size=4))
def test_what_is_read_is_what_was_written(tmp_path_factory, batches):
    journal = Journal(tmp_path_factory.mktemp("journal") / "records.jsonl")
    ends = [(JournalEnd(), [])]
    for batch in batches:
        ends.append((kept(journal, clients=batch), ends[-1][1] + batch))
    for end, written in ends:
        assert read_lines(journal.path, end).get("clients", []) == written


def test_lines_of_a_checkpoint_that_was_not_completed_are_replaced(tmp_path):
    journal = Journal(tmp_path / "records.jsonl")
    kept(journal, rounds=[{"round": 1}])
    journal.append({"rounds": [{"round": 2, "lost": "x" * 100}]})
    end = kept(journal, rounds=[{"round": 2}])
    assert read_lines(journal.path, end) == {"rounds": [{"round": 1}, {"round": 2}]}
    assert journal.path.stat().st_size == end.size


def test_a_changed_or_missing_byte_is_noticed(tmp_path):
    journal = Journal(tmp_path / "records.jsonl")
    end = kept(journal, rounds=[{"round": 1}])
    whole = journal.path.read_bytes()
    for damaged in (whole[:-1], whole.replace(b"1", b"2"), b""):
        journal.path.write_bytes(damaged)
        with pytest.raises(ValueError, match="SHA-256 differs"):
            read_lines(journal.path, end)
    journal.path.unlink()
    with pytest.raises(ValueError, match=r"records\.jsonl, which belongs beside it: No"):
        Journal(tmp_path / "own").go_on(journal.path, end)
