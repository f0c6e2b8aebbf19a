"""Replies of three nodes, screened by hand; a grid that lets through what belongs to a message."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import VECTOR_KEY, VECTOR_RECORD
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.metrics import ReplyLimits, scalar
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.messages.polling_grid import REGISTRATION_ENDED
from fedif_flower.messages.screened_grid import SPARE_BYTES, ScreenedGrid
from fedif_flower.messages.screening import Screening, screen_replies
from fedif_flower.messages.workspace import Question, Workspace
from fedif_flower.round import ModelVectors
from fedif_flower.runtime.local_grid import LocalGrid
from tests.server.hostile import Clients, step_reply

SENT = ArrayRecord(
    {name: pack_array(np.zeros(size, np.float32)) for name, size in (("w", 2), ("mean", 1))}
)
LAYOUT = ParameterLayout.from_arrays(SENT, ["w"])
MODEL = LAYOUT.to_vectors(SENT)
NODES = {i: ClientNode(i, i) for i in (0, 1, 2)}


@pytest.fixture(autouse=True)
def of_a_run():
    """Flower stamps every message with the task that sends it, which a grid says."""
    LocalGrid(lambda message, _: message, 0)


def question(node_id: int) -> Message:
    return Message(RecordDict({"arrays": SENT, "config": ConfigRecord()}), node_id, "train")


def answer(node_id: int, step: float = 1.0, **metrics: float) -> Message:
    """Add ``step`` to parameters and buffer."""
    reply = step_reply(question(node_id), step)
    reply.content["metrics"].update(metrics)
    return reply


def screen(
    *replies: Message, asked=NODES, late=None, at: float = -math.inf, has_vector=False
) -> tuple[Screening, Workspace]:
    """Screen the replies of round 3, in which those asked were asked, and one in round 1."""
    workspace = Workspace(LAYOUT, has_vector=has_vector)
    limits = ReplyLimits("num-examples", 1e6)
    now = {i: Question(node, MODEL, at, 3) for i, node in asked.items()}
    everybody = now | (late or {})
    found = screen_replies(replies, everybody, workspace, limits, server_round=3)
    return found, workspace


def late(at: float = -math.inf) -> dict[int, Question]:
    """Return that node 2 was sent a model of ones two rounds ago, and counts for half."""
    return {2: Question(NODES[2], ModelVectors(torch.ones(2), torch.ones(1)), at, 1, 0.5)}


def test_rows_are_those_of_the_accepted_in_the_order_of_partitions():
    found, workspace = screen(answer(2, 3.0), answer(0, math.nan), answer(1, 2.0))
    assert [reply.node.partition_id for reply in found.accepted] == [1, 2]
    assert [reply.squared_norm for reply in found.accepted] == [8.0, 18.0]
    assert workspace.updates[:2].tolist() == [[2.0, 2.0], [3.0, 3.0]]
    assert workspace.buffer_updates[:2].tolist() == [[2.0], [3.0]]


def test_second_reply_and_stranger_are_refused():
    found, workspace = screen(answer(0, 1.0), answer(0, 9.0), answer(7), answer(1), answer(2))
    assert [(reply.node.node_id, reply.reason, reply.status) for reply in found.refused] == [
        (7, "reply from a node that was not asked", "refused"),
        (0, "second reply from the same node", "refused"),
    ]
    assert workspace.updates[:1].tolist() == [[1.0, 1.0]]


def test_what_gives_no_reply_is_told_apart():
    ended = Message(Error(REGISTRATION_ENDED, "the operator ended it"), reply_to=question(0))
    raised = Message(Error(2, "boom"), reply_to=question(1))
    found, _ = screen(ended, raised)
    assert [(reply.status, reply.reason) for reply in found.refused] == [
        ("revoked", "the operator ended it"),
        ("failed", "client error 2: boom"),
        ("away", "no reply before the deadline"),
    ]


def test_a_late_reply_counts_for_less_in_length_and_buffers_too():
    asked = {i: NODES[i] for i in (0, 1)}
    found, workspace = screen(answer(2, 5.0), answer(0), answer(1), asked=asked, late=late())
    # From its own model of ones to 5 it goes 4, and half of it counts.
    assert workspace.updates[:3][2].tolist() == [2.0, 2.0]
    assert workspace.buffer_updates[2].tolist() == [2.0]
    assert [reply.squared_norm for reply in found.accepted] == [2.0, 2.0, 8.0]
    assert found.accepted[2].reported.notes == ("trained on the model of round 1",)


@pytest.mark.parametrize(("claimed", "is_believed"), [(99.0, True), (200.0, False)])
def test_nobody_trained_longer_than_it_was_asked_ago(claimed, is_believed):
    now = time.perf_counter()
    claims = {"train-seconds": claimed}
    asked = {0: NODES[0]}
    for options in ({"at": now - 100}, {"at": now - 1e4, "late": late(now - 100)}):
        found, _ = screen(*(answer(i, **claims) for i in (0, 2)), asked=asked, **options)
        last = found.accepted[-1].reported
        assert (scalar(last.records, "train-seconds") is not None) == is_believed
        assert ("train-seconds" in last.records["metrics"]) == is_believed


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (None, "no array 'local-method'"),
        (torch.tensor([1.0, math.nan]), "array 'local-method' has NaN or Inf"),
        (torch.ones(3), "array 'local-method' has shape (3,)"),
        (torch.ones(2, dtype=torch.int64), "array 'local-method' has dtype int64"),
    ],
)
def test_a_vector_beside_the_model_is_screened_like_an_update(vector, reason):
    reply = answer(0)
    if vector is not None:
        reply.content[VECTOR_RECORD] = tensor_arrays({VECTOR_KEY: vector})
    found, _ = screen(reply, asked={0: NODES[0]}, has_vector=True)
    assert [reason in refused.reason for refused in found.refused] == [True]


# -- the screened grid


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

    def stream_replies(self, messages, *, timeout=None):
        first, *others = super().stream_replies(messages)
        for name, value in self._metadata.items():
            first.metadata.__dict__[f"_{name}"] = value
        return iter([first, *others])


def test_a_reply_in_another_s_name_is_an_error_of_the_node_that_was_asked():
    replies = ask(Spoofing(src_node_id=1001))
    assert replies[1000].error.reason == "the reply says that it comes from node 1001"
    assert replies[1001].has_content()


def test_a_reply_to_no_message_or_a_second_one_to_another_s_counts_for_nobody(caplog):
    replies = ask(Spoofing(src_node_id=1001, reply_to_message_id="guessed"))
    assert (set(replies), replies[1001].has_content()) == ({1001}, True)
    assert "a reply that claims to be from node 1001 answers no message" in caplog.text

    class Late(LocalGrid):
        def stream_replies(self, messages, *, timeout=None):
            forged, other = super().stream_replies(messages)
            answered = other.metadata.reply_to_message_id
            forged.metadata.__dict__["_reply_to_message_id"] = answered
            return iter([other, forged])

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
