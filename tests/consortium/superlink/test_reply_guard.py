from __future__ import annotations

import contextlib
import time
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
)
from flwr.supercore.constant import OBJECT_PUSH_SESSION_TTL_SECONDS
from flwr.supercore.inflatable.inflatable_object import get_object_id, iterate_object_tree
from flwr.supercore.object_store import ObjectStore, ObjectStoreFactory
from starlette.exceptions import HTTPException

from fedif_consortium.superlink.guarded_superlink import reply_budget
from fedif_consortium.superlink.reply_guard import SPARE_BYTES, ReplyGuard
from fedif_flower.errors import ConfigError
from fedif_flower.runtime.local_grid import LocalGrid
from tests.integration.protocol import packed
from tests.integration.protocol_attacks import packed_object

MEMBER, OTHER = 1000, 1001
TASK = SimpleNamespace(run_id=1)
GRID = LocalGrid(lambda *_: None, 0)  # Messages need a task that sends them.


@pytest.mark.parametrize("text", ["inf", "1e400", "1e308", "nan", "0.5", "-1", "two"])
def test_a_budget_that_is_no_multiple_is_refused_before_any_reply_is(text):
    with pytest.raises(ConfigError, match=f"FEDIF_REPLY_BUDGET = '{text}'; allowed: a number >= 1"):
        reply_budget(text)


@pytest.mark.parametrize(("text", "budget"), [("", 1.0), ("1", 1.0), ("2", 2.0), ("1e6", 1e6)])
def test_a_budget_is_a_multiple_of_the_heaviest_message(text, budget):
    assert reply_budget(text) == budget


class Flower:
    """Flower's two modules of handlers, and the state that they keep, as far as the guard sees."""

    def __init__(self, objects: ObjectStore | None = None) -> None:
        self.stored: dict[str, bytes] = {}
        self.deleted: set[str] = set()
        self.replies: dict[str, tuple[ProtoMessage, ObjectTree]] = {}
        self.sessions = 0
        self.objects = objects or ObjectStoreFactory().store()
        self.fleet = SimpleNamespace(
            push_messages=self._announce, push_object=lambda **asked: self._store(**asked)
        )
        self.runtime = SimpleNamespace(
            push_messages=lambda request, state, task: self._take(request.message_object_trees),
            push_object=lambda request, state, task: self._store(request, state),
            pull_messages=lambda **asked: self._pull(**asked),
        )
        ReplyGuard().install(self.fleet, self.runtime)

    def _take(self, trees):
        for tree in trees:
            self.objects.preregister(TASK.run_id, tree)

    def _announce(self, request, state):
        self.sessions += 1
        self._take(request.message_object_trees)
        (reply,), (tree,) = request.messages_list, request.message_object_trees
        self.replies[reply.metadata.reply_to_message_id] = reply, tree
        ids = [node.object_id for node in iterate_object_tree(tree)]
        missing = [i for i in ids if i not in self.stored]
        return PushMessagesResponse(objects_to_push=missing, session_id=f"s{self.sessions}")

    def _store(self, request, state):
        self.stored[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def _pull(self, request, state, task):
        found = [self.replies.pop(i) for i in request.message_ids if i in self.replies]
        replies, trees = zip(*found, strict=True) if found else ((), ())
        return PullAppMessagesResponse(messages_list=replies, message_object_trees=trees)

    # What handlers call of the state.

    def get_object(self, run_id, object_id):
        return self.stored.get(object_id)

    def delete_messages(self, message_ins_ids):
        self.deleted |= message_ins_ids
        for message_id in message_ins_ids:
            self.replies.pop(message_id, None)

    # What members and the ServerApp do.

    def send(self, message: Message) -> None:
        message, tree, contents = packed(message)
        self.runtime.push_messages(PushAppMessagesRequest(message_object_trees=[tree]), self, TASK)
        for object_id, content in contents.items():
            request = PushObjectRequest(object_id=object_id, object_content=content)
            self.runtime.push_object(request, self, TASK)

    def announce(self, reply: Message, tree: ObjectTree, node_id: int = MEMBER):
        request = PushMessagesRequest(
            node=Node(node_id=node_id),
            messages_list=[message_to_proto(reply)],
            message_object_trees=[tree],
        )
        return self.fleet.push_messages(request, self)

    def upload(self, session: str, object_id: str, content: bytes, node_id: int = MEMBER) -> bool:
        request = PushObjectRequest(
            node=Node(node_id=node_id),
            session_id=session,
            object_id=object_id,
            object_content=content,
        )
        return self.fleet.push_object(request, self).stored

    def reply(self, reply: Message) -> bool:
        reply, tree, contents = packed(reply)
        response = self.announce(reply, tree)
        heaviest_last = sorted(response.objects_to_push, key=lambda i: len(contents[i]))
        return all(self.upload(response.session_id, i, contents[i]) for i in heaviest_last)

    def pull(self, *message_ids: str) -> list[str]:
        request = PullAppMessagesRequest(message_ids=message_ids)
        replies = self.runtime.pull_messages(request, self, TASK).messages_list
        return [reply.metadata.reply_to_message_id for reply in replies]


def model(size: int = 1000, dtype: type = np.float32, seed: int = 0) -> ArrayRecord:
    values = np.random.default_rng(seed).random(size).astype(dtype)
    return ArrayRecord({"w": Array(values)})


@pytest.fixture
def message() -> Message:
    message = Message(RecordDict({"arrays": model()}), MEMBER, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def answer(message: Message, arrays: ArrayRecord | None = None, **metrics: float) -> Message:
    content = {"arrays": arrays or model(seed=1), "metrics": MetricRecord({"n": 1, **metrics})}
    return Message(RecordDict(content), reply_to=message)


def test_a_reply_is_handed_on_once_it_is_whole(message):
    flower = Flower()
    flower.send(message)
    reply, tree, contents = packed(answer(message))
    response = flower.announce(reply, tree)
    message_id = message.metadata.message_id
    for object_id in response.objects_to_push:
        assert flower.pull(message_id) == []
        assert flower.upload(response.session_id, object_id, contents[object_id])
    assert flower.pull(message_id) == [message_id]
    assert flower.deleted == set()


def test_a_reply_announced_while_others_are_handed_on_waits_for_the_next_time(message):
    flower = Flower()
    flower.send(message)
    reply, tree, contents = packed(answer(message))
    announced = []
    member = Thread(target=lambda: announced.append(flower.announce(reply, tree)))

    def hand_on(request, state, task):
        member.start()
        member.join(0.2)
        # Whatever has been announced by now, Flower takes for a reply.
        return Flower._pull(flower, request, state, task)

    flower._pull = hand_on
    flower.pull(message.metadata.message_id)
    member.join()
    (response,) = announced
    for object_id in response.objects_to_push:
        assert flower.upload(response.session_id, object_id, contents[object_id])


def test_a_reply_counts_for_the_node_that_sends_it(message):
    flower = Flower()
    flower.send(message)
    reply, tree, _ = packed(answer(message))
    with pytest.raises(HTTPException, match="403"):
        flower.announce(reply, tree, node_id=OTHER)
    assert flower.sessions == 0  # Flower has not seen it.


def test_an_upload_belongs_to_the_node_that_announced_it(message):
    flower = Flower()
    flower.send(message)
    reply, tree, contents = packed(answer(message))
    response = flower.announce(reply, tree)
    object_id = response.objects_to_push[0]
    assert not flower.upload(response.session_id, object_id, contents[object_id], node_id=OTHER)
    assert not flower.upload("", object_id, contents[object_id])
    assert not flower.upload(response.session_id, object_id, b"something lighter")
    assert not flower.upload(response.session_id, "f" * 64, b"not announced")
    assert flower.upload(response.session_id, object_id, contents[object_id])


@pytest.mark.parametrize(
    "spoil",
    [
        {"arrays": model(100_000)},
        {"arrays": model(70_000, np.float64)},
        {"m" * SPARE_BYTES: 1.0},
    ],
)
def test_a_reply_that_weighs_too_much_is_refused_at_once(message, spoil):
    flower = Flower()
    flower.send(message)
    with pytest.raises(HTTPException, match="413: the reply weighs more than the message"):
        flower.reply(answer(message, **spoil))
    assert flower.deleted == {message.metadata.message_id}


def test_the_log_says_why_a_reply_is_dropped(message, monkeypatch, caplog):
    flower = Flower()
    flower.send(message)
    session, root = announced(flower, message, b"never uploaded")
    assert flower.upload(session, get_object_id(root), root)
    later = time.monotonic() + OBJECT_PUSH_SESSION_TTL_SECONDS
    monkeypatch.setattr("time.monotonic", lambda: later)
    assert flower.pull(message.metadata.message_id) == []
    assert caplog.messages == [f"node {MEMBER}, run 1: the reply was not uploaded completely"]


def test_a_reply_that_cannot_be_read_is_not_called_too_heavy(message):
    flower = Flower()
    flower.send(message)
    odd = b"no object of Flower's"
    session, _ = announced(flower, message, odd)
    with pytest.raises(HTTPException, match="413: the reply cannot be read"):
        flower.upload(session, get_object_id(odd), odd)


def test_too_many_objects_are_refused_before_flower_sees_them(message):
    flower = Flower()
    flower.send(message)
    arrays = ArrayRecord({f"w{i}": Array(np.full(1, i)) for i in range(30)})
    with pytest.raises(HTTPException, match="objects; allowed"):
        flower.reply(answer(message, arrays=arrays))
    assert flower.sessions == 0


def layers(*values: float, size: int = 100) -> ArrayRecord:
    """Return so many arrays, each of one value: equal ones are one object to Flower."""
    arrays = {f"w{i}": Array(np.full(size, value)) for i, value in enumerate(values)}
    return ArrayRecord(arrays)


@pytest.mark.parametrize("size", [100, 50_000])
def test_a_new_model_of_equal_layers_comes_back_with_different_ones(size):
    """As batch normalisation begins: 40 layers of zeros, each sent once to Flower."""
    message = Message(RecordDict({"arrays": layers(*[0.0] * 40, size=size)}), MEMBER, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    flower = Flower()
    flower.send(message)
    trained = layers(*range(1, 41), size=size)
    flower.reply(answer(message, arrays=trained))
    message_id = message.metadata.message_id
    assert flower.pull(message_id) == [message_id]
    # No more than these 40, and none that is larger.
    for heavy in (layers(*range(1, 61), size=size), layers(*range(1, 41), size=size + 1000)):
        flower = Flower()
        flower.send(message)
        with pytest.raises(HTTPException, match="413"):
            flower.reply(answer(message, arrays=heavy))


def test_an_array_of_zeros_comes_back_with_other_values():
    """Flower sends an array in chunks, and equal ones once."""
    count = 3 * 1024 * 1024
    message = Message(RecordDict({"arrays": layers(0.0, size=count)}), MEMBER, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    flower = Flower()
    flower.send(message)
    values = np.random.default_rng(0).random(count)
    flower.reply(answer(message, arrays=ArrayRecord({"w0": Array(values)})))
    message_id = message.metadata.message_id
    assert flower.pull(message_id) == [message_id]


def announced(flower: Flower, message: Message, *objects: bytes) -> tuple[str, bytes]:
    """Announce a reply whose message holds these objects; return session and message as sent."""
    reply = remove_content_from_message(answer(message))
    children = [ObjectTree(object_id=get_object_id(one)) for one in objects]
    body = ProtoMessage(metadata=message_to_proto(reply).metadata)
    body.metadata.message_id = ""
    ids = [child.object_id for child in children]
    root = packed_object("Message", ids, body.SerializeToString(deterministic=True))
    reply.metadata.__dict__["_message_id"] = get_object_id(root)
    tree = ObjectTree(object_id=get_object_id(root), children=children)
    return flower.announce(reply, tree).session_id, root


@pytest.mark.parametrize("order", ["[0, 0]", "[0]", "[1]", '"x"', "[[[[", None])
@pytest.mark.parametrize("own", [(0, 1, 2), (2, 1, 0), (0, 1), (2,), ()])
def test_chunks_count_as_often_as_they_are_repeated_whoever_sent_them(
    message, monkeypatch, order, own
):
    flower, message_id = Flower(), message.metadata.message_id
    flower.send(message)
    chunk = packed_object("ArrayChunk", [], bytes(SPARE_BYTES - 1000))
    body = "{}" if order is None else f'{{"arraychunk_ids": {order}}}'
    array = packed_object("Array", [get_object_id(chunk)], body.encode())
    ids = [get_object_id(one) for one in (chunk, array)]
    theirs = {ids[k]: (chunk, array)[k] for k in (0, 1) if k not in own}
    if 2 in own:
        flower.stored |= theirs
    session, root = announced(flower, message, chunk, array)
    objects = chunk, array, root
    if 2 not in own:
        theirs[get_object_id(root)] = root
    with contextlib.suppress(HTTPException):
        for k in own:
            assert flower.upload(session, get_object_id(objects[k]), objects[k])
    flower.stored |= theirs  # Others send the same, and Flower waits for no more of it.
    later = time.monotonic() + OBJECT_PUSH_SESSION_TTL_SECONDS
    monkeypatch.setattr("time.monotonic", lambda: later)
    assert flower.pull(message_id) == ([message_id] if order == "[0]" else [])
    if len(own) == 3 or order == "[0]":  # At the last object the sender is told.
        assert bool(flower.deleted) == (order != "[0]")


@pytest.mark.parametrize("count", [0, 2])
def test_one_reply_at_a_time_with_the_objects_of_it(message, count):
    flower = Flower()
    reply, tree, _ = packed(answer(message))
    for root in ("b" * 64, reply.metadata.message_id):  # Another id; another content.
        with pytest.raises(HTTPException, match="400: the objects are not those of the reply"):
            flower.announce(reply, ObjectTree(object_id=root))
    request = PushMessagesRequest(
        node=Node(node_id=MEMBER),
        messages_list=[message_to_proto(reply)] * count,
        message_object_trees=[tree] * count,
    )
    with pytest.raises(HTTPException, match="400"):
        flower.fleet.push_messages(request, flower)


def test_an_error_is_a_reply(message):
    flower = Flower()
    flower.send(message)
    assert flower.reply(Message(Error(2, "it failed"), reply_to=message))
    message_id = message.metadata.message_id
    assert flower.pull(message_id) == [message_id]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["created_at", "ttl", "runtime"])
def test_a_time_that_is_no_finite_number_is_refused(message, name, value):
    """Flower's database would hold none in its place, and the ServerApp's next look would fail."""
    flower = Flower()
    flower.send(message)
    reply = answer(message)
    if name != "runtime":
        reply.metadata.__dict__[f"_{name}"] = value
    reply, tree, _ = packed(reply)
    request = PushMessagesRequest(
        node=Node(node_id=MEMBER),
        messages_list=[message_to_proto(remove_content_from_message(reply))],
        message_object_trees=[tree],
        clientapp_runtime_list=[value if name == "runtime" else 1.0],
    )
    with pytest.raises(HTTPException, match="400: a time of the reply is no finite number"):
        flower.fleet.push_messages(request, flower)
    assert flower.sessions == 0


@pytest.mark.parametrize("false", [(), ("f" * 64,)])
def test_what_a_member_says_of_anothers_objects_stops_nobody(message, false):
    """Flower keeps what was said first of what an object holds, and refuses other words later."""
    flower = Flower(ObjectStoreFactory(":memory:").store())  # Flower's database does.
    flower.send(message)
    reply, tree, _ = packed(answer(message))
    # An object of the next message, which a member can foresee, and of the others' replies.
    coming = Message(RecordDict({"arrays": model(seed=2)}), OTHER, "train")
    (array,) = coming.content["arrays"].values()
    children = [ObjectTree(object_id=object_id) for object_id in false]
    (content,) = tree.children
    content.children.append(ObjectTree(object_id=array.object_id, children=children))
    flower.announce(reply, tree)
    flower.send(coming)
    reply, tree, _ = packed(Message(coming.content, reply_to=coming))
    flower.announce(reply, tree, node_id=OTHER)
