from __future__ import annotations

import pytest

from fedif_consortium.evidence.chained_log import START, ChainedLog, last_hash, verified
from fedif_flower.errors import EvidenceError

ENTRIES = [{"asked": "open", "run": 1}, {"asked": "sum", "weights": [1, 2]}, {"refusal": "né\nn"}]


def written() -> tuple[list[str], str]:
    lines: list[str] = []
    log = ChainedLog(write=lines.append)
    for entry in ENTRIES:
        log.append(entry)
    return lines, log.head


def said(entries):
    return [{key: v for key, v in entry.items() if key != "hash"} for entry in entries]


def test_a_log_is_read_back_and_goes_on_where_it_ended():
    lines, head = written()
    log = ChainedLog(head, lines.append)
    log.append({"asked": "close"})
    found = verified(lines, "log")
    assert (said(found), last_hash(found)) == ([*ENTRIES, {"asked": "close"}], log.head)
    assert last_hash([]) == START


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        pytest.param(lambda lines: [lines[0], lines[2]], 2, id="a line is gone"),
        pytest.param(lambda lines: [lines[1], lines[0], lines[2]], 1, id="two change places"),
        pytest.param(lambda lines: [lines[0], lines[1].replace("2", "3"), lines[2]], 2, id="edit"),
        pytest.param(lambda lines: [*lines, lines[2]], 4, id="a line twice"),
    ],
)
def test_damage_is_noticed_at_its_line(damage, number):
    lines, _ = written()
    with pytest.raises(EvidenceError, match=f"^line {number} of the log of ada"):
        verified(damage(lines), "the log of ada")


def test_a_line_that_cannot_be_written_is_not_in_the_chain():
    lines: list[str] = []

    def write(line):
        if "full" in line:
            raise OSError
        lines.append(line)

    log = ChainedLog(write=write)
    log.append({"asked": "open"})
    with pytest.raises(OSError):  # noqa: PT011
        log.append({"asked": "full"})
    log.append({"asked": "close"})
    assert said(verified(lines, "log")) == [{"asked": "open"}, {"asked": "close"}]
