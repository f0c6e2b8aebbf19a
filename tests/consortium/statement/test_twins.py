from __future__ import annotations

import numpy as np
import pytest

from fedif_consortium.statement.account import settle
from fedif_consortium.statement.records import read_run
from fedif_consortium.statement.twins import have_twins
from tests.consortium.statement.runs import make_run

ROUNDS = np.array([0.5, 0.4, 0.3, -0.1, 0.2, 0.1])


def test_a_statement_asks_to_look_at_both(tmp_path):
    rounds = [{0: value, 1: value, 2: 2 * value} for value in (0.5, 0.4, 0.3, 0.2, 0.1)]
    found = settle(read_run(make_run(tmp_path / "run", rounds)))
    levels = {member.partition_id: member.verdict.level for member in found.members}
    assert levels == {0: "review", 1: "review", 2: "accept"}
    reasons = [m.verdict.reason for m in found.members if m.verdict.level == "review"]
    assert all("copied update" in reason and "partition" not in reason for reason in reasons)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (ROUNDS * (1 + 1e-6), True),
        (ROUNDS * 1.01, False),
        (np.where(ROUNDS < 0, 0.1, ROUNDS), False),  # Different once.
        (np.concatenate([[0.0], ROUNDS[1:]]), True),  # Five rounds together.
        (np.concatenate([[0.0, 0.0], ROUNDS[2:]]), False),
        (0 * ROUNDS, False),
    ],
)
def test_the_same_up_to_rounding_in_each_of_five_rounds(other, found):
    members = np.stack([ROUNDS, other, 0 * ROUNDS], axis=1)
    assert have_twins(members).tolist() == [found, found, False]
