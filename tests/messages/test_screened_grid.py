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


def test_a_reply_to_no_message_counts_for_nobody(caplog):
    replies = ask(Spoofing(src_node_id=1001, reply_to_message_id="guessed"))
    assert set(replies) == {1001}
    assert replies[1001].has_content()
    assert "in the name of node 1001" in caplog.text


def test_a_second_reply_to_another_s_message_counts_for_nobody():
    class Late(LocalGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            forged = replies[0]
            forged.metadata.__dict__["_reply_to_message_id"] = replies[
                1
            ].metadata.reply_to_message_id
            return [replies[1], forged]

    replies = ask(Late(Clients(), 2))
    assert set(replies) == {1001}


def test_errors_are_put_down_to_the_node_that_was_asked():
    def boom(message, context):
        raise RuntimeError("boom")

    class FromElsewhere(Spoofing):
        def __init__(self) -> None:
            LocalGrid.__init__(self, boom, 2)
            self._metadata = {"src_node_id": 1}

    replies = ask(FromElsewhere())
    assert "boom" in replies[1000].error.reason


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


@pytest.mark.parametrize(
    ("spoil", "accepted"),
    [
        (lambda arrays, metrics: None, True),
        (lambda arrays, metrics: arrays.update(w=Array(np.zeros(4, np.float64))), True),
        (
            lambda arrays, metrics: arrays.update(w=Array(np.zeros(SPARE_BYTES + 1024, np.int8))),
            False,
        ),
        (
            lambda arrays, metrics: arrays.update({f"w{i}": arrays["w"] for i in range(40000)}),
            False,
        ),
        (lambda arrays, metrics: metrics.update({f"m{i}": 1.0 for i in range(1000)}), True),
        (lambda arrays, metrics: metrics.update({f"m{i}": 1.0 for i in range(40000)}), False),
        (lambda arrays, metrics: metrics.update(m=[1] * 40000), False),
        (lambda arrays, metrics: metrics.update({"m" * 10_000_000: 1.0}), False),
    ],
)
def test_a_reply_weighs_what_the_message_weighs(spoil, accepted):
    def answer(message, context):
        arrays = dict(message.content.array_records["arrays"])
        metrics = {"num-examples": 1}
        spoil(arrays, metrics)
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    (reply,) = ask(LocalGrid(answer, 1), [1000]).values()
    assert reply.has_content() == accepted, reply
    assert accepted or "the reply holds" in reply.error.reason
