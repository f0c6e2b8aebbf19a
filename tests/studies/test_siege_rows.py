"""How much longer rounds took beside an attack."""

from __future__ import annotations

import pytest

from fedif_studies.benchmarks.siege import row_of
from tests.integration.siege import Phase


@pytest.mark.parametrize(
    ("seconds", "ended", "mean", "times"),
    [
        (7.0, [2.5, 2.5], 2.5, "1.25"),
        # The third round had no time left to be as long as the others.
        (10.0, [4.0, 4.0], 4.0, "2.00"),
        # It had, and did not end: it took 6 s at least.
        (10.0, [2.0, 2.0], 10 / 3, "> 1.67"),
        (10.0, [], 10.0, "> 5.00"),
    ],
)
def test_a_round_that_did_not_end_counts_as_long_as_it_lasted(seconds, ended, mean, times):
    beside = Phase(ended, 0, {"bombs": {}})
    quiet = [Phase([2.0, 2.0], 0, {}), Phase([2.0], 0, {})]
    row = row_of("bombs", seconds, beside, quiet)
    assert (row["round-seconds"], row["times"]) == (round(mean, 2), times)
    assert row["rounds"] == len(ended)
