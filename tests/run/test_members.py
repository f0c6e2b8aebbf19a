"""Before the first round real members check themselves, and the operator is told."""

from __future__ import annotations

import logging
import time

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from client_app import app as client_app
from fedif_flower.errors import TrainingFailedError
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from tests.run.resuming import CLIENTS, run, run_config


class Remote(LocalGrid):
    """As real nodes are: what they send has to be looked at."""

    reliable = False

    def __init__(self, client=client_app, **more) -> None:
        super().__init__(client, CLIENTS, **more)
        self.questions: list[bool] = []

    def push_messages(self, messages):
        messages = list(messages)
        asked = (m for m in messages if m.metadata.message_type == "query")
        self.questions += ["config" in message.content for message in asked]
        return super().push_messages(messages)


@pytest.fixture(autouse=True)
def told(caplog):
    caplog.set_level(logging.INFO, "fedif_flower.run.preflight")
    return caplog


def test_every_member_is_asked_once_and_what_it_found_is_told(tmp_path, told):
    grid = Remote()
    run(run_config(tmp_path, num_server_rounds=1), grid)
    assert grid.questions == [True] * CLIENTS
    lines = [message for message in told.messages if "data: " in message]
    assert len(lines) == CLIENTS
    assert lines[0].startswith("node 1000: data: ") or lines[0].startswith("client 0 (node 1000)")
    for check in ("data", "training", "signing-key", "masking", "clock"):
        assert all(f"{check}: " in line for line in lines)


UNFIT = {2: {"data-dir": "/nowhere", "num-partitions": 3}}  # Fewer parts than clients.


def test_a_run_does_not_begin_with_a_member_that_cannot_take_part(tmp_path, told):
    config = run_config(tmp_path, num_server_rounds=1)
    words = (
        r"1 of 6 members cannot take part: client 2 \(node 1002\): data: num-clients = 6, but this "
        "node is one of 3 partitions.* start-without = 'unfit' begins all the same"
    )
    with pytest.raises(TrainingFailedError, match=words):
        run_federation(Remote(node_configs=UNFIT), config)
    assert not config.run_dir.exists()
    (line,) = [message for message in told.messages if "data failed: " in message]
    assert "; to do: put the data where data-dir" in line


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"data": "\x1b" * 5_000}, "node warning: unreadable"),
        ({"time": time.time() + 3600}, "clock warning: 3"),
        ({"time": float("nan")}, ""),
    ],
)
def test_a_hostile_answer_stops_nothing_and_is_bounded(tmp_path, told, answer, said):
    def client(message: Message, context):
        reply = client_app(message, context)
        if message.metadata.message_type == "query" and context.node_id == 1003:
            content = RecordDict({**reply.content, "preflight": ConfigRecord(answer)})
            return Message(content, reply_to=message)
        return reply

    run(run_config(tmp_path, num_server_rounds=1), Remote(client))
    about = [m for m in told.messages if "node 1003" in m and "to do: " in m]
    assert (len(about), all(said in message for message in about)) == (bool(said), True)
    assert all(len(message) < 1000 and message.isprintable() for message in about)
