from __future__ import annotations

from datetime import date

import pytest

from fedif_consortium.member.round_counts import RoundCounts
from fedif_consortium.member.run_rules import RunRules
from fedif_flower.errors import ConfigError, RefusedByMemberError, StorageError

MONDAY, TUESDAY = date(2026, 1, 5), date(2026, 1, 6)


def test_a_day_has_so_many_rounds_and_messages_even_after_a_restart(tmp_path):
    rules = RunRules(most_rounds_a_day=2, most_messages_a_day=4)
    counts = RoundCounts(tmp_path, rules)
    counts.count("train", MONDAY)
    counts.count("train.again", MONDAY)
    counts = RoundCounts(tmp_path, rules)
    for _ in range(3):  # What was refused does not count.
        with pytest.raises(RefusedByMemberError, match="at most 2 rounds a day"):
            counts.count("train", MONDAY)
    counts.count("query", MONDAY)
    counts.count("evaluate", MONDAY)
    with pytest.raises(RefusedByMemberError, match="at most 4 messages a day"):
        RoundCounts(tmp_path, rules).count("query", MONDAY)
    RoundCounts(tmp_path, rules).count("train", TUESDAY)


@pytest.mark.parametrize("content", ["", "[]", '{"day": "2026-01-05", "rounds": "x"}'])
def test_a_damaged_file_is_an_error_at_the_start(tmp_path, content):
    (tmp_path / "round-counts.json").write_text(content)
    with pytest.raises(ConfigError, match="without it counts begin at 0"):
        RoundCounts(tmp_path, RunRules())


def test_what_cannot_be_counted_is_not_answered(tmp_path):
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(StorageError):
        RoundCounts(tmp_path / "state", RunRules()).count("train", MONDAY)
