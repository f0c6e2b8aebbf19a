from __future__ import annotations

from datetime import date

import pytest

from fedif_consortium.member.round_counts import RoundCounts
from fedif_consortium.member.run_rules import RunRules
from fedif_flower.errors import ConfigError, RefusedByMemberError, StorageError

MONDAY, TUESDAY = date(2026, 1, 5), date(2026, 1, 6)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "counts.json"


def test_a_day_has_so_many_rounds_and_messages_even_after_a_restart(path):
    rules = RunRules(most_rounds_a_day=2, most_messages_a_day=4)
    counts = RoundCounts(path, rules)
    counts.count("train", MONDAY)
    counts.count("train.again", MONDAY)
    counts = RoundCounts(path, rules)
    for _ in range(3):  # What was refused does not count.
        with pytest.raises(RefusedByMemberError, match="at most 2 rounds a day"):
            counts.count("train", MONDAY)
    counts.count("query", MONDAY)
    counts.count("evaluate", MONDAY)
    with pytest.raises(RefusedByMemberError, match="at most 4 messages a day"):
        RoundCounts(path, rules).count("query", MONDAY)
    RoundCounts(path, rules).count("train", TUESDAY)


@pytest.mark.parametrize("content", ["", "[]", '{"day": "2026-01-05", "rounds": "x"}'])
def test_a_damaged_file_is_an_error_at_the_start(path, content):
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ConfigError, match="does not hold counts of rounds"):
        RoundCounts(path, RunRules())


def test_what_cannot_be_counted_is_not_answered(path):
    path.parent.write_text("a file where the folder should be")
    with pytest.raises(StorageError):
        RoundCounts(path, RunRules()).count("train", MONDAY)
