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


def test_a_run_has_so_many_rounds_even_after_a_restart(path):
    rules = RunRules(most_rounds=2)
    RoundCounts(path, rules).count(1, "train", MONDAY)
    RoundCounts(path, rules).count(1, "train.again", TUESDAY)
    counts = RoundCounts(path, rules)
    with pytest.raises(RefusedByMemberError, match="at most 2 rounds of a run"):
        counts.count(1, "train", TUESDAY)
    counts.count(1, "evaluate", TUESDAY)
    counts.count(2, "train", TUESDAY)


def test_a_day_has_so_many_rounds_and_messages(path):
    rules = RunRules(most_rounds_a_day=1, most_messages_a_day=3)
    counts = RoundCounts(path, rules)
    counts.count(1, "train", MONDAY)
    with pytest.raises(RefusedByMemberError, match="at most 1 rounds a day"):
        counts.count(2, "train", MONDAY)
    counts.count(2, "query", MONDAY)
    counts.count(2, "evaluate", MONDAY)
    with pytest.raises(RefusedByMemberError, match="at most 3 messages a day"):
        RoundCounts(path, rules).count(2, "query", MONDAY)
    counts.count(2, "train", TUESDAY)


def test_what_was_refused_does_not_count(path):
    counts = RoundCounts(path, RunRules(most_rounds=1, most_messages_a_day=2))
    counts.count(1, "train", MONDAY)
    for _ in range(3):
        with pytest.raises(RefusedByMemberError):
            counts.count(1, "train", MONDAY)
    counts.count(2, "train", MONDAY)


@pytest.mark.parametrize("content", ["", "[]", '{"day": "2026-01-05"}', '{"by-run": 3}'])
def test_a_damaged_file_is_an_error_at_the_start(path, content):
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ConfigError, match="does not hold counts of rounds"):
        RoundCounts(path, RunRules())


def test_what_cannot_be_counted_is_not_answered(path):
    path.parent.write_text("a file where the folder should be")
    with pytest.raises(StorageError):
        RoundCounts(path, RunRules()).count(1, "train", MONDAY)
