"""A grid that wraps another one hands every call on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedif_flower.messages.forwarding_grid import ForwardingGrid
from fedif_flower.runtime.local_grid import LocalGrid


class Forwarding(ForwardingGrid):
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.inner.send_and_receive(messages, timeout=timeout)


def echo(message: Message, _: Any) -> Message:
    return Message(message.content, reply_to=message)


def test_messages_and_nodes_are_those_of_the_inner_grid():
    inner = LocalGrid(echo, 2)
    grid = Forwarding(inner)
    assert grid.inner is inner
    assert list(grid.get_node_ids()) == [1000, 1001]
    message_ids = grid.push_messages([Message(RecordDict(), 1001, MessageType.QUERY)])
    (reply,) = grid.pull_messages(message_ids)
    assert reply.metadata.src_node_id == 1001


def test_every_method_of_flowers_grid_has_an_answer():
    assert ForwardingGrid.__abstractmethods__ == {"send_and_receive"}
    assert Grid.__abstractmethods__ - {"send_and_receive"} <= vars(ForwardingGrid).keys()


def test_the_deprecated_way_to_a_message_is_refused():
    with pytest.raises(RuntimeError, match="construct a"):
        Forwarding(LocalGrid(echo, 1)).create_message()
