from __future__ import annotations

import pytest

from fedif_consortium.superlink.node_rates import (
    LEAST_SECONDS_AT_ONCE,
    PATIENCE,
    ROUND_SECONDS,
    ROUNDS_AT_ONCE,
    Bucket,
    NodeRates,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_bucket_owes_what_it_did_not_hold(clock):
    bucket = Bucket(rate=2.0, most=4.0, clock=clock)
    bucket.take(5.0)
    assert bucket.wait() == pytest.approx(0.5)  # One is owed, two come in a second.
    clock.now += 1.5
    assert bucket.wait() == 0.0
    assert bucket.level == pytest.approx(2.0)
    clock.now += 1e6
    bucket.wait()
    assert bucket.level == pytest.approx(4.0)


def rates(clock, needs=(0.0, 0.0)) -> NodeRates:
    return NodeRates(10.0, 1000.0, lambda: needs, clock)


def served(found: NodeRates, clock: Clock, seconds: float, size: int = 0) -> float:
    """Return the requests a second of a node that sends one after the other, as fast as it may."""
    count, end = 0, clock.now + seconds
    while clock.now < end:
        wait = found.wait(1, 1.0, size)
        if wait is None:
            clock.now += 1.0
            continue
        clock.now += wait + 1e-3
        count += 1
    return count / seconds


def test_a_node_that_never_stops_gets_its_rate_and_others_theirs(clock):
    found = rates(clock)
    at_once = 10.0 * LEAST_SECONDS_AT_ONCE
    assert served(found, clock, 1000.0) == pytest.approx(10.0 + at_once / 1000.0, rel=0.01)
    assert found.wait(2, 1.0, 0) == 0.0


def test_what_many_connections_ask_for_at_once_is_refused_beyond_the_patience(clock):
    found = rates(clock)
    waits = [found.wait(1, 1.0, 0) for _ in range(1000)]
    taken = [wait for wait in waits if wait is not None]
    assert max(taken) <= PATIENCE
    assert len(taken) == pytest.approx(10.0 * (LEAST_SECONDS_AT_ONCE + PATIENCE), abs=2)
    assert waits[-1] is None


def test_a_heavy_run_has_what_its_rounds_take(clock):
    found = rates(clock, needs=(500.0, 1e6))
    at_once = 500.0 * ROUNDS_AT_ONCE
    assert served(found, clock, 1000.0) == pytest.approx(
        (500 / ROUND_SECONDS) + at_once / 1000, 0.01
    )
