from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedif_flower.messages.screened_grid import SPARE_BYTES, ScreenedGrid
from fedif_flower.runtime.local_grid import LocalGrid
from tests.strategies.hostile import Clients, step_reply


def model_message(node_id: int, size: int = 4) -> Message:
    arrays = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
    return Message(RecordDict({"arrays": arrays, "config": ConfigRecord()}), node_id, "train")


def ask(grid: LocalGrid, nodes=(1000, 1001)) -> dict[int, Message]:
    replies = list(ScreenedGrid(grid).send_and_receive(map(model_message, nodes)))
    assert len({r.metadata.src_node_id for r in replies}) == len(replies)
    return {reply.metadata.src_node_id: reply for reply in replies}


class Spoofing(LocalGrid):
    """Node 1000 answers first, and in the name of the victim, node 1001."""

    def __init__(self, **metadata: object) -> None:
        super().__init__(Clients(), 2)
        self._metadata = metadata

    def pull_messages(self, message_ids):
        first, *others = super().pull_messages(message_ids)
        for name, value in self._metadata.items():
            first.metadata.__dict__[f"_{name}"] = value
        return [first, *others]


def test_a_reply_in_another_s_name_is_an_error_of_the_node_that_was_asked():
    replies = ask(Spoofing(src_node_id=1001))
    assert replies[1000].error.reason == "the reply says that it comes from node 1001"
    assert replies[1001].has_content()


def test_a_reply_to_no_message_or_a_second_one_to_another_s_counts_for_nobody(caplog):
    replies = ask(Spoofing(src_node_id=1001, reply_to_message_id="guessed"))
    assert (set(replies), replies[1001].has_content()) == ({1001}, True)
    assert "in the name of node 1001" in caplog.text

    class Late(LocalGrid):
        def pull_messages(self, message_ids):
            forged, other = super().pull_messages(message_ids)
            answered = other.metadata.reply_to_message_id
            forged.metadata.__dict__["_reply_to_message_id"] = answered
            return [other, forged]

    assert set(ask(Late(Clients(), 2))) == {1001}


def test_errors_are_put_down_to_the_node_that_was_asked():
    grid = Spoofing(src_node_id=1)
    grid._client_app = lambda message, context: 1 / 0
    assert "division by zero" in ask(grid)[1000].error.reason


def test_what_messages_are_hashed_from_cannot_be_guessed():
    seen = []

    def answer(message, context):
        seen.append(message.metadata.group_id)
        return step_reply(message, 1.0)

    grid = ScreenedGrid(LocalGrid(answer, 3))
    for _ in range(2):
        list(grid.send_and_receive(map(model_message, (1000, 1001, 1002))))
    list(grid.pull_messages(grid.push_messages([model_message(1000)])))
    assert len(set(seen)) == 7
    assert all(len(nonce) == 32 and int(nonce, 16) > 0 for nonce in seen)


FLOOD = {f"w{i}": Array(np.zeros(1, np.int8)) for i in range(40_000)}


@pytest.mark.parametrize(
    ("arrays", "metrics", "accepted"),
    [
        ({"w": Array(np.zeros(4, np.float64))}, {}, True),
        ({"w": Array(np.zeros(SPARE_BYTES + 1024, np.int8))}, {}, False),
        (FLOOD, {}, False),
        ({}, {f"m{i}": 1.0 for i in range(1000)}, True),
        ({}, dict.fromkeys(FLOOD, 1.0), False),
        ({}, {"m": [1] * 40_000}, False),
        ({}, {"m" * 10_000_000: 1.0}, False),
    ],
)
def test_a_reply_weighs_what_the_message_weighs(arrays, metrics, accepted):
    def answer(message, context):
        content = {
            "arrays": ArrayRecord({**message.content["arrays"], **arrays}),
            "metrics": MetricRecord({"num-examples": 1, **metrics}),
        }
        return Message(RecordDict(content), reply_to=message)

    (reply,) = ask(LocalGrid(answer, 1), [1000]).values()
    assert reply.has_content() == accepted, reply
    assert accepted or "the reply holds" in reply.error.reason
