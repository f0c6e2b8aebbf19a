"""Replies of three nodes to a model of two parameters and one buffer, screened by hand."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import VECTOR_KEY, VECTOR_RECORD
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.metrics import ReplyLimits, scalar
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.messages.polling_grid import REGISTRATION_ENDED
from fedif_flower.messages.screening import (
    Asked,
    Screening,
    Workspace,
    screen_replies,
)
from fedif_flower.round import ModelVectors
from fedif_flower.runtime.local_grid import LocalGrid
from tests.strategies.hostile import step_reply

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
    now = {i: Asked(node, MODEL, at, 3) for i, node in asked.items()}
    everybody = now | (late or {})
    found = screen_replies(replies, everybody, workspace, limits, server_round=3)
    return found, workspace


def late(at: float = -math.inf) -> dict[int, Asked]:
    """Return that node 2 was sent a model of ones two rounds ago, and counts for half."""
    return {2: Asked(NODES[2], ModelVectors(torch.ones(2), torch.ones(1)), at, 1, 0.5)}


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
