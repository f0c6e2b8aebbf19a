from __future__ import annotations

import threading
import time

import pytest
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo

from fedif_flower.messages.polling_grid import REGISTRATION_ENDED, Closing, PollingGrid
from fedif_flower.runtime.local_grid import LocalGrid
from tests.strategies.hostile import Clients


def query(node_id: int) -> Message:
    return Message(RecordDict(), node_id, MessageType.QUERY)


class SlowGrid(LocalGrid):
    """Node n answers at the n-th look; nodes may have answers of their own."""

    def __init__(self, num_nodes: int = 3, answers=None, **kwargs) -> None:
        super().__init__(Clients(), num_nodes, **kwargs)
        self.answers = answers or {}
        self.looks: list[int] = []

    def pull_messages(self, message_ids):
        message_ids = list(message_ids)
        replies = []
        for message_id in message_ids:
            node_id = self._waiting[message_id].metadata.dst_node_id
            self.looks.append(node_id)
            if self.looks.count(node_id) <= node_id - 1000:
                continue
            message = self._waiting[message_id]
            (reply,) = super().pull_messages([message_id]) or [None]
            answer = self.answers.get(node_id)
            replies.append(answer(message, reply) if answer else reply)
        return [reply for reply in replies if reply is not None]


def ask(grid: LocalGrid, timeout: float | None = None) -> dict[int, Message]:
    polling = PollingGrid(grid, poll_seconds=0.01)
    replies = polling.send_and_receive(map(query, grid.get_node_ids()), timeout=timeout)
    assert len({reply.metadata.src_node_id for reply in replies}) == len(replies)
    return {reply.metadata.src_node_id: reply for reply in replies}


def test_waits_for_each_and_asks_no_one_again():
    grid = SlowGrid(3)
    replies = ask(grid)
    assert set(replies) == {1000, 1001, 1002}
    assert replies[1002].content["node"]["partition-id"] == 2
    assert [grid.looks.count(n) for n in (1000, 1001, 1002)] == [1, 2, 3]


def test_a_silent_node_costs_the_timeout_and_no_more():
    class Forgetful(LocalGrid):
        def pull_messages(self, message_ids):
            here = [i for i in message_ids if self._waiting[i].metadata.dst_node_id != 1001]
            return super().pull_messages(here)

    started = time.monotonic()
    assert set(ask(Forgetful(Clients(), 3), timeout=0.3)) == {1000, 1002}
    assert time.monotonic() - started >= 0.3


def test_an_upload_that_never_ends_delays_nobody():
    never = threading.Event()

    class Stalled(LocalGrid):
        def pull_messages(self, message_ids):
            message_ids = list(message_ids)
            if any(self._waiting[i].metadata.dst_node_id == 1000 for i in message_ids):
                never.wait()
            return super().pull_messages(message_ids)

    grid = PollingGrid(Stalled(Clients(), 4), 0.01, sweep_seconds=0.05)
    started = time.monotonic()
    replies = grid.send_and_receive(map(query, grid.get_node_ids()), timeout=0.5)
    assert time.monotonic() - started < 60  # and not for ever
    assert {reply.metadata.src_node_id for reply in replies} == {1001, 1002, 1003}
    never.set()


class Restarting(LocalGrid):
    """Node 1001 never answers; who came online when is told by `activations`, look by look."""

    def __init__(self, *activations: dict[int, str]) -> None:
        super().__init__(Clients(), 2)
        self.activations = list(activations)

    def get_nodes(self):
        now = self.activations.pop(0) if len(self.activations) > 1 else self.activations[0]
        names = {1001: "hospital-b"}
        return [
            NodeInfo(node_id=i, last_activated_at=at, name=names.get(i)) for i, at in now.items()
        ]

    def pull_messages(self, message_ids):
        here = [i for i in message_ids if self._waiting[i].metadata.dst_node_id != 1001]
        return super().pull_messages(here)


def ask_restarting(*activations: dict[int, str], timeout: float | None) -> dict[int, Message]:
    grid = PollingGrid(Restarting(*activations), poll_seconds=0.01, restart_seconds=0.02)
    replies = grid.send_and_receive([query(1000), query(1001)], timeout=timeout)
    return {reply.metadata.src_node_id: reply for reply in replies}


def test_a_node_that_was_started_again_is_not_waited_for():
    before, after = {1000: "09:00", 1001: "09:00"}, {1000: "09:00", 1001: "09:05"}
    replies = ask_restarting(before, before, after, timeout=None)
    assert replies[1000].has_content()
    assert replies[1001].error.code == ErrorCode.NODE_UNAVAILABLE
    assert replies[1001].error.reason == "the node was started again before it answered"


@pytest.mark.parametrize("code", [ErrorCode.NODE_UNAVAILABLE, REGISTRATION_ENDED])
@pytest.mark.parametrize("is_registered", [True, False])
def test_the_end_of_a_registration_is_told_apart_from_a_crash(code, is_registered):
    class Unavailable(SlowGrid):
        """Node 1000 is gone once it was sent its message; a node may also claim any code."""

        def push_messages(self, messages):
            messages = list(messages)
            ids = super().push_messages(messages)
            gone = len(messages) == 1 and not is_registered
            return ["" for _ in ids] if gone else ids

    def gone(message, reply):
        return Message(Error(code, "missed its heartbeats"), reply_to=message)

    replies = ask(Unavailable(2, {1000: gone}))
    assert replies[1001].has_content()
    error = replies[1000].error
    if is_registered:
        assert (error.code, error.reason) == (ErrorCode.NODE_UNAVAILABLE, "missed its heartbeats")
    else:
        told = (REGISTRATION_ENDED, "the operator ended its registration")
        assert (error.code, error.reason) == told


def test_a_reply_that_cannot_be_read_stands_alone():
    def explode(message, reply):
        raise KeyError("object")

    replies = ask(SlowGrid(2, {1000: explode}))
    assert "the reply cannot be read: KeyError('object')" in replies[1000].error.reason
    assert replies[1001].has_content()


class Slow(LocalGrid):
    """Node 1002 answers when it is looked at for the tenth time."""

    looks = 0

    def pull_messages(self, message_ids):
        (message_id,) = message_ids
        if self._waiting[message_id].metadata.dst_node_id == 1002:
            self.looks += 1
            if self.looks < 10:
                return []
        return super().pull_messages(message_ids)


def test_a_reply_that_misses_its_round_is_found_in_a_later_one():
    grid = PollingGrid(Slow(Clients(), 3), poll_seconds=0.01)
    closing = Closing(quorum=2, keeps=True)
    replies = []
    for reply in grid.arrivals(map(query, grid.get_node_ids()), 60, closing):
        replies.append(reply.metadata.src_node_id)
        closing.count()
    assert replies == [1000, 1001]
    (late,) = grid.outstanding({1002})
    assert late.metadata.dst_node_id == 1002
    found = list(grid.arrivals([], 60, Closing(keeps=True)))
    assert [reply.metadata.src_node_id for reply in found] == [1002]
    assert grid.outstanding({1002}) == []


def test_a_reply_that_was_being_fetched_when_its_round_closed_is_not_lost():
    closed = threading.Event()

    class Loaded(LocalGrid):
        """Fetching from node 1000 takes until the round is closed; a reply is there once."""

        def pull_messages(self, message_ids):
            (message_id,) = message_ids
            if self._waiting[message_id].metadata.dst_node_id == 1000:
                replies = super().pull_messages([message_id])
                closed.wait()
                return replies
            return super().pull_messages([message_id])

    grid = PollingGrid(Loaded(Clients(), 2), poll_seconds=0.01)
    closing = Closing(quorum=1, keeps=True)
    for reply in grid.arrivals([query(1000), query(1001)], 60, closing):
        assert reply.metadata.src_node_id == 1001
        closing.count()
    closed.set()
    found = list(grid.arrivals([], 60, Closing(keeps=True)))
    assert [reply.metadata.src_node_id for reply in found] == [1000]
    assert found[0].has_content()


def miss_a_round(*activations: dict[int, str]) -> tuple[PollingGrid, list[Message]]:
    """Return a grid on which 1001 missed its round, and what came in the next one."""
    grid = PollingGrid(Restarting(*activations), poll_seconds=0.01, restart_seconds=60.0)
    replies: list[Message] = []
    for messages in ([query(1000), query(1001)], [query(1000)]):
        replies.clear()
        closing = Closing(quorum=1, keeps=True)
        for reply in grid.arrivals(messages, 60, closing):
            replies.append(reply)
            if reply.has_content():
                closing.count()
    return grid, replies


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("09:00", "09:00"),  # It is at work.
        ("", "09:05"),  # It was away when it was sent the message, and has it still to come.
        ("09:00", ""),  # It is offline: the SuperLink says so itself.
    ],
)
def test_a_late_reply_is_waited_for_while_it_can_come(first, second):
    def online(at: str) -> dict[int, str]:
        return {1000: "09:00"} | ({1001: at} if at else {})

    grid, replies = miss_a_round(online(first), online(second))
    assert [reply.metadata.src_node_id for reply in replies] == [1000]
    assert len(grid.outstanding({1001})) == 1


def test_a_node_that_was_started_again_between_two_rounds_is_free_to_be_asked():
    grid, replies = miss_a_round({1000: "09:00", 1001: "09:00"}, {1000: "09:00", 1001: "09:05"})
    lost = next(reply for reply in replies if reply.metadata.src_node_id == 1001)
    assert lost.error.reason == "the node was started again before it answered"
    assert grid.outstanding({1001}) == []


def test_whose_registration_ended_is_told_from_who_is_offline():
    class Rejecting(LocalGrid):
        def push_messages(self, messages):
            ids = super().push_messages(messages)
            return ["", *ids[1:]]

    grid = PollingGrid(Rejecting(Clients(), 2))
    assert grid.unregistered([1000, 1001]) == {1000}
    assert grid.unregistered([]) == set()
