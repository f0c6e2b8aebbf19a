from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo

from fedif_flower.messages.polling_grid import (
    REGISTRATION_ENDED,
    Closing,
    PollingGrid,
    stream_replies,
)
from fedif_flower.runtime.local_grid import LocalGrid
from tests.server.hostile import Clients

Replies = list[Message]
Answer = Callable[[Callable[[], Replies]], Replies]


def query(node_id: int) -> Message:
    return Message(RecordDict(), node_id, MessageType.QUERY)


class Nodes(LocalGrid):
    """Nodes answer at once, but for those with answers of their own to each look.

    Who came online when is told by `activations`, look by look.
    """

    def __init__(self, num_nodes: int, answers=None, activations=({},)) -> None:
        super().__init__(Clients(), num_nodes)
        self.answers: dict[int, Answer] = answers or {}
        self.activations = list(activations)
        self.looks: list[int] = []

    def get_nodes(self):
        now = self.activations.pop(0) if len(self.activations) > 1 else self.activations[0]
        return [NodeInfo(node_id=i, last_activated_at=at) for i, at in now.items()]

    def pull_messages(self, message_ids):
        (message_id,) = message_ids
        node_id = self._waiting[message_id].metadata.dst_node_id
        self.looks.append(node_id)
        pull = super().pull_messages
        own = self.answers.get(node_id, lambda answer: answer())
        return own(lambda: pull([message_id]))


def at_look(number: int) -> Answer:
    looks = iter(range(1, 1000))
    return lambda answer: answer() if next(looks) >= number else []


def never(answer) -> Replies:
    return []


def raising(answer) -> Replies:
    raise KeyError("object")


def quick(grid: LocalGrid, **seconds: float) -> PollingGrid:
    polling = PollingGrid(grid)
    vars(polling).update({"poll_seconds": 0.01, **seconds})
    return polling


def ask(grid: LocalGrid, timeout: float | None = None, **settings) -> dict[int, Message]:
    polling = quick(grid, **settings)
    replies = polling.send_and_receive(map(query, grid.get_node_ids()), timeout=timeout)
    assert len({reply.metadata.src_node_id for reply in replies}) == len(replies)
    return {reply.metadata.src_node_id: reply for reply in replies}


def test_waits_for_each_and_asks_no_one_again():
    grid = Nodes(3, {1001: at_look(2), 1002: at_look(3)})
    replies = ask(grid)
    assert replies[1002].content["node"]["partition-id"] == 2
    assert [grid.looks.count(n) for n in (1000, 1001, 1002)] == [1, 2, 3]


def test_a_node_was_last_seen_when_it_last_answered(monkeypatch):
    """Flower lists a node as online for a minute after its host was switched off."""
    clock = iter(range(100, 1000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    there = {1000: "at noon", 1001: "at noon"}
    polling = quick(Nodes(2, {1001: never}, [there] * 9), restart_seconds=0.02, sweep_seconds=0.01)
    assert polling.last_seen(1000) is None
    polling.send_and_receive(map(query, (1000, 1001)), timeout=0.2)
    answered = polling.last_seen(1000)
    polling.send_and_receive([query(1001)], timeout=0.1)  # Both are looked for, none answers.
    assert polling.last_seen(1000) == answered
    assert polling.last_seen(1001) > answered


def test_an_upload_that_never_ends_delays_nobody():
    released = threading.Event()
    grid = Nodes(4, {1000: lambda answer: answer() if released.wait() else []})
    started = time.monotonic()
    assert set(ask(grid, timeout=0.5, sweep_seconds=0.05)) == {1001, 1002, 1003}
    assert time.monotonic() - started < 60  # and not for ever
    released.set()


def test_a_reply_is_handed_over_while_others_are_awaited():
    """A preflight compares a member's clock with the time at which its answer comes."""
    released = threading.Event()
    grid = quick(Nodes(2, {1001: lambda answer: answer() if released.wait() else []}))
    replies = stream_replies(grid, map(query, (1000, 1001)), 60)
    assert next(replies).metadata.src_node_id == 1000
    released.set()
    assert next(replies).metadata.src_node_id == 1001


def test_few_replies_are_in_memory_at_a_time():
    begun: list[int] = []
    taken: list[int] = []
    most = 0

    def slowly(answer):
        nonlocal most
        begun.append(1)
        most = max(most, len(begun) - len(taken))
        time.sleep(0.1)  # Longer than a look takes: the next one is looked for meanwhile.
        return answer()

    grid = Nodes(12, dict.fromkeys(range(1000, 1012), slowly))
    polling = quick(grid, slow_seconds=600.0)
    for reply in polling.stream_replies(map(query, grid.get_node_ids())):
        taken.append(reply.metadata.src_node_id)  # noqa: PERF401 (read meanwhile)
    assert sorted(taken) == list(range(1000, 1012))
    assert 1 < most <= polling.most_fetched == 4


def test_more_uploads_that_never_end_than_are_fetched_at_a_time_delay_nobody():
    released = threading.Event()
    stuck = dict.fromkeys(range(1000, 1006), lambda answer: answer() if released.wait() else [])
    grid = Nodes(8, stuck)
    replies = quick(grid, slow_seconds=0.05).stream_replies(map(query, grid.get_node_ids()))
    assert {next(replies).metadata.src_node_id for _ in range(2)} == {1006, 1007}
    released.set()
    assert len(list(replies)) == 6


def test_a_reply_that_cannot_be_read_stands_alone():
    replies = ask(Nodes(2, {1000: raising}))
    assert "the reply cannot be read: KeyError('object')" in replies[1000].error.reason
    assert replies[1001].has_content()


EARLY, LATE = {1000: "09:00", 1001: "09:00"}, {1000: "09:00", 1001: "09:05"}
RESTARTED = "the node was started again before it answered"


def test_a_node_that_was_started_again_is_not_waited_for():
    replies = ask(Nodes(2, {1001: never}, (EARLY, EARLY, LATE)), restart_seconds=0.02)
    assert replies[1000].has_content()
    error = replies[1001].error
    assert (error.code, error.reason) == (ErrorCode.NODE_UNAVAILABLE, RESTARTED)


def test_a_reply_that_takes_long_to_fetch_counts_though_its_node_was_started_again():
    def once_checked(answer) -> Replies:
        while len(grid.activations) > 1:  # The restart was seen, and another check is due.
            time.sleep(0.01)
        return answer()

    grid = Nodes(2, {1001: once_checked}, (EARLY, LATE, LATE, LATE))
    assert ask(grid, timeout=60, restart_seconds=0.02)[1001].has_content()


def test_messages_that_the_superlink_does_not_take_end_the_run():
    """Flower's grid returns no ids where the request was too large (HTTP 413)."""

    class TooLarge(Nodes):
        def push_messages(self, messages):
            return []

    with pytest.raises(RuntimeError, match="2 messages were sent and 0 taken: the request may be"):
        ask(TooLarge(2))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
        REGISTRATION_ENDED,
    ],
)
@pytest.mark.parametrize("is_registered", [True, False])
def test_the_end_of_a_registration_is_told_apart_from_a_crash(code, is_registered):
    class Unavailable(Nodes):
        """Node 1000 is gone once it was sent its message; a node may also claim any code."""

        def push_messages(self, messages):
            messages = list(messages)
            ids = super().push_messages(messages)
            return ["" for _ in ids] if len(messages) == 1 and not is_registered else ids

    def gone(answer):
        return [Message(Error(code, "missed its heartbeats"), reply_to=query(1000))]

    grid = Unavailable(2, {1000: gone})
    replies = ask(grid)
    assert replies[1001].has_content()
    error = replies[1000].error
    told = (REGISTRATION_ENDED, "the operator ended its registration")
    if is_registered:
        told = (ErrorCode.NODE_UNAVAILABLE, "missed its heartbeats")
    assert (error.code, error.reason) == told
    assert PollingGrid(grid).unregistered([1000]) == (set() if is_registered else {1000})


def test_a_question_about_a_registration_outlives_its_way_to_the_superlink(monkeypatch):
    """The SuperLink refuses an expired message as an error of the whole request: the run ends."""
    began = time.time()

    class Slow(Nodes):
        def push_messages(self, messages):
            messages = list(messages)
            monkeypatch.setattr(time, "time", lambda: began + 60)  # A busy host, or its clock.
            assert all(m.metadata.created_at + m.metadata.ttl > time.time() for m in messages)
            return super().push_messages(messages)

    assert PollingGrid(Slow(1)).unregistered([1000]) == set()


def senders(grid: PollingGrid, nodes, closing: Closing) -> list[int]:
    """Play a round; return whose replies came, usable ones alone."""
    found = []
    for reply in grid.stream_replies(map(query, nodes), timeout=60, closing=closing):
        if reply.has_content():
            found.append(reply.metadata.src_node_id)
            closing.count()
    return found


@pytest.mark.parametrize(("grace", "expected"), [(0.0, [1000]), (0.05, [1000, 1002])])
def test_a_grace_ends_with_a_look_for_all(grace, expected):
    # The pause after the look for 1001 outlasts the grace: 1002 is not looked for within it.
    grid = quick(Nodes(3, {1001: never}), poll_seconds=0.2)
    assert senders(grid, (1000, 1001, 1002), Closing(quorum=1, grace=grace)) == expected


def test_a_reply_that_misses_its_round_is_found_in_a_later_one():
    closed = threading.Event()

    def loaded(answer) -> Replies:
        replies = answer()
        closed.wait()
        return replies

    # It is not there yet, or being fetched when the round closes.
    for late in (at_look(10), loaded):
        grid = quick(Nodes(3, {1002: late}))
        assert senders(grid, (1000, 1001, 1002), Closing(quorum=2, keeps=True)) == [1000, 1001]
        (message,) = grid.outstanding({1002})
        assert message.metadata.dst_node_id == 1002
        closed.set()
        assert senders(grid, [], Closing(keeps=True)) == [1002]
        assert grid.outstanding({1002}) == []


@pytest.mark.parametrize(
    ("first", "second", "is_lost"),
    [
        ("09:00", "09:00", False),  # It is at work.
        ("", "09:05", False),  # It was away when it was sent the message, and has it to come.
        ("09:00", "", False),  # It is offline: the SuperLink says so itself.
        ("09:00", "09:05", True),  # It was started again, and is free to be asked.
    ],
)
def test_a_late_reply_is_waited_for_while_it_can_come(first, second, is_lost):
    online = [{1000: "09:00"} | ({1001: at} if at else {}) for at in (first, second)]
    grid = quick(Nodes(2, {1001: never}, online), restart_seconds=60.0, poll_seconds=5.0)
    for nodes in ((1000, 1001), (1000,)):
        assert senders(grid, nodes, Closing(quorum=1, keeps=True)) == [1000]
    assert len(grid.outstanding({1001})) == (0 if is_lost else 1)


@pytest.mark.parametrize(
    ("settings", "timeout", "deadline"),
    [
        ({"quorum": 2}, None, 104.0),
        ({"quorum": 2, "grace": 1.5}, None, 105.5),
        ({"quorum": 2, "grace": 30.0}, 10.0, 110.0),
        ({"quorum": 1, "grace": 5.0}, None, 106.0),  # Later replies do not move the end.
        ({"quorum": 3}, 10.0, 110.0),
        ({}, None, None),
    ],
)
def test_a_round_whose_second_reply_comes_after_four_seconds_closes(settings, timeout, deadline):
    now = [100.0]
    closing = Closing(**settings)
    closing.begin(timeout, lambda: now[0])
    for now[0] in (101.0, 104.0):
        closing.count()
    assert closing.deadline == deadline
    assert closing.has_quorum == (settings.get("quorum", 3) <= 2)
    assert closing.is_over() == (deadline == 104.0)
