"""When a round closes, by a clock that the test sets."""

from __future__ import annotations

import pytest

from fedif_flower.messages.polling_grid import Closing


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("settings", "timeout", "deadline"),
    [
        ({"quorum": 2}, None, 104.0),
        ({"quorum": 2, "grace": 1.5}, None, 105.5),
        ({"quorum": 2, "grace": 30.0}, 10.0, 110.0),
        ({"quorum": 3}, 10.0, 110.0),
        ({}, None, None),
    ],
)
def test_the_second_reply_comes_after_four_seconds(settings, timeout, deadline):
    clock = Clock()
    closing = Closing(**settings)
    closing.begin(timeout, clock)
    clock.now = 101.0
    closing.count()
    clock.now = 104.0
    closing.count()
    assert closing.deadline == deadline
    assert closing.has_quorum == (settings.get("quorum") == 2)
    assert closing.is_over() == (deadline == 104.0)


def test_later_replies_do_not_move_the_end():
    clock = Clock()
    closing = Closing(quorum=1, grace=5.0)
    closing.begin(None, clock)
    for clock.now in (102.0, 106.0):
        closing.count()
    assert closing.deadline == 107.0
