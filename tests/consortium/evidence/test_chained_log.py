from __future__ import annotations

import pytest

from fedif_consortium.evidence.chained_log import START, ChainedLog, last_hash, open_log, verified
from fedif_flower.errors import EvidenceError

ENTRIES = [{"asked": "open", "run": 1}, {"asked": "sum", "weights": [1, 2]}, {"refusal": "né\nn"}]


def test_a_log_is_read_back_goes_on_where_it_ended_and_leaves_out_what_was_not_written():
    lines: list[str] = []

    def write(line):
        if "full" in line:
            raise OSError
        lines.append(line)

    log = ChainedLog(write=write)
    for entry in ENTRIES[:2]:
        log.append(entry)
    with pytest.raises(OSError):  # noqa: PT011
        log.append({"asked": "full"})
    log = ChainedLog(log.head, write)
    log.append(ENTRIES[2])
    found = verified(lines, "log")
    assert last_hash(found) == log.head
    assert [{k: v for k, v in entry.items() if k != "hash"} for entry in found] == ENTRIES
    assert last_hash([]) == START


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        pytest.param(lambda a, b, c, _: [a, c], 2, id="a line is gone"),
        pytest.param(lambda a, b, c, _: [b, a, c], 1, id="two change places"),
        pytest.param(lambda a, b, c, _: [a, b.replace("2", "3"), c], 2, id="edit"),
        pytest.param(lambda a, b, c, _: [a, b, c, c], 4, id="a line twice"),
        pytest.param(lambda *lines: lines, 4, id="no entry"),
    ],
)
def test_damage_is_noticed_at_its_line(damage, number):
    lines: list[str] = []
    log = ChainedLog(write=lines.append)
    for entry in [*ENTRIES, "no entry"]:
        log.append(entry)
    with pytest.raises(EvidenceError, match=f"^line {number} of the log of ada"):
        verified(damage(*lines), "the log of ada")


@pytest.mark.parametrize("content", ["garbage without an end", "no\nlog", "A" * 64 + " {}"])
def test_a_file_that_is_no_log_is_not_cut(tmp_path, content):
    path = tmp_path / "log.txt"
    path.write_text(content)
    with pytest.raises(EvidenceError, match=r"log\.txt is no log: it does not begin with a hash"):
        open_log(path)
    assert path.read_text() == content


@pytest.mark.parametrize("torn", ["", "ab12", "ab\0\0", "ab" * 32, "ab" * 32 + ' {"asked":"op'])
def test_a_first_line_that_was_torn_off_is_written_over(tmp_path, torn):
    path = tmp_path / "log.txt"
    path.write_text(torn)
    assert open_log(path).head == START
    assert not path.read_text()
