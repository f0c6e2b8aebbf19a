"""The guard in front of Flower's own handlers, state and store: attacks as members mount them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import (
    get_federation_manager,
    get_objectstore_linkstate_factories,
)
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from starlette.exceptions import HTTPException

from fedif_consortium.superlink.reply_guard import ReplyGuard
from tests.integration.protocol import packed

VICTIM_STEP, FORGED_STEP = 1.0, 1e6


class SuperLink:
    """A SuperLink without its sockets: a run, two nodes, and a message to each."""

    def __init__(self, guarded: bool, monkeypatch: pytest.MonkeyPatch, database: str) -> None:
        _, factory = get_objectstore_linkstate_factories(
            database, get_federation_manager(is_simulation=False)
        )
        self.state = factory.state()
        self.nodes = [self._node(str(k).encode()) for k in range(2)]
        run_id = self.state.create_run(
            "id", "1", "hash", {}, NOOP_FEDERATION_ID, None, "aid", TaskType.SERVER_APP
        )
        self.task = SimpleNamespace(run_id=run_id, task_id=1)
        for name, value in (("run_id", run_id), ("task_id", 1), ("node_id", 1)):
            monkeypatch.setattr(TaskIdentity, f"_{name}", value)
        # The run has a task that nobody has started: it counts as running here.
        monkeypatch.setattr(fleet_handlers, "check_abort", lambda *_: None)
        self.fleet = SimpleNamespace(
            push_messages=fleet_handlers.push_messages, push_object=fleet_handlers.push_object
        )
        self.runtime = SimpleNamespace(
            push_messages=runtime_handlers.push_messages,
            push_object=runtime_handlers.push_object,
            pull_messages=runtime_handlers.pull_messages,
        )
        if guarded:
            ReplyGuard().install(self.fleet, self.runtime)
        self.messages = [self._send(node_id) for node_id in self.nodes]

    def _node(self, key: bytes) -> int:
        node_id = self.state.create_node("aid", "name", key, 1e6)
        assert self.state.activate_node(node_id, 1e6)
        return int(node_id)

    def _send(self, node_id: int) -> Message:
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(8, np.float32))})})
        message, tree, contents = packed(Message(content, node_id, "train"))
        request = PushAppMessagesRequest(
            messages_list=[message_to_proto(message)], message_object_trees=[tree]
        )
        response = self.runtime.push_messages(request, self.state, self.task)
        for object_id in response.objects_to_push:
            pushed = PushObjectRequest(
                node=Node(node_id=1),
                run_id=self.task.run_id,
                session_id=response.session_id,
                object_id=object_id,
                object_content=contents[object_id],
            )
            assert self.runtime.push_object(pushed, self.state, self.task).stored
        return message

    def announce(self, sender: int, reply: Message):
        reply, tree, contents = packed(reply)
        request = PushMessagesRequest(
            node=Node(node_id=sender),
            messages_list=[message_to_proto(reply)],
            message_object_trees=[tree],
        )
        response = self.fleet.push_messages(request, self.state)
        return list(response.objects_to_push), response.session_id, contents

    def upload(self, sender: int, session_id: str, object_id: str, content: bytes) -> bool:
        request = PushObjectRequest(
            node=Node(node_id=sender),
            run_id=self.task.run_id,
            session_id=session_id,
            object_id=object_id,
            object_content=content,
        )
        return bool(self.fleet.push_object(request, self.state).stored)

    def pull(self, message: Message) -> list[object]:
        request = PullAppMessagesRequest(message_ids=[message.metadata.message_id])
        return list(self.runtime.pull_messages(request, self.state, self.task).messages_list)


def reply_to(message: Message, step: float, size: int = 8) -> Message:
    arrays = ArrayRecord({"w": Array(np.full(size, step, np.float32))})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


@pytest.fixture(params=[":flwr-in-memory:", "superlink.db"])
def superlink(request, monkeypatch, tmp_path):
    """Return what makes a SuperLink, guarded or not, with either of Flower's states."""
    database = request.param if request.param[0] == ":" else str(tmp_path / request.param)
    return lambda guarded=True: SuperLink(guarded, monkeypatch, database)


@pytest.mark.parametrize("guarded", [False, True])
def test_forging_works_in_flower_and_not_behind_the_guard(superlink, guarded):
    link = superlink(guarded)
    hostile, message = link.nodes[0], link.messages[1]
    forged = reply_to(message, FORGED_STEP)
    if guarded:
        with pytest.raises(HTTPException, match="403"):
            link.announce(hostile, forged)
        assert link.pull(message) == []
    else:
        missing, session, contents = link.announce(hostile, forged)
        assert missing
        assert all(link.upload(hostile, session, i, contents[i]) for i in missing)
        (found,) = link.pull(message)
        assert found.metadata.src_node_id == link.nodes[1]  # who never said anything


def test_ten_thousand_guesses_are_refused_one_and_all(superlink):
    link = superlink()
    hostile, message = link.nodes[0], link.messages[1]
    reply, tree, _ = packed(reply_to(message, FORGED_STEP))
    request = PushMessagesRequest(
        node=Node(node_id=hostile),
        messages_list=[message_to_proto(reply)],
        message_object_trees=[tree],
    )
    metadata, refused = request.messages_list[0].metadata, 0
    for number in range(10_000):
        # Every other guess is right, which nobody's can be.
        if number % 2:
            metadata.reply_to_message_id = f"{number:064x}"
        else:
            metadata.reply_to_message_id = message.metadata.message_id
        try:
            link.fleet.push_messages(request, link.state)
        except HTTPException as error:
            refused += error.status_code == 403
    assert refused == 10_000
    assert link.pull(message) == []
