"""What a registered member can do wrong in Flower's protocol, one way at a time.

Each takes the member, its message and the victim's message, of which a member knows nothing in
truth: the attacks are given more than they could have. None of them raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from copy import deepcopy

import httpx
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_object_id,
    iterate_object_tree,
)

from fedif_flower.messages.records import records_of
from tests.integration.protocol import Member, packed
from tests.server.hostile import step_reply

Attack = Callable[[Member, Message, Message], None]
CHUNK = 5 * 1024 * 1024
GUESSES = 200


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """The SuperLink may answer with an error, but it answers."""
    with contextlib.suppress(httpx.HTTPStatusError):
        yield


def uploads_half(member: Member, message: Message, victim: Message) -> None:
    """Announce a reply and send half of it; then nothing comes any more."""
    reply, tree, contents = packed(step_reply(message, 1.0))
    response = member.announce(reply, tree)
    member.upload(reply, response.session_id, contents, response.objects_to_push[::2])


def message_id(content_id: str, envelope: ProtoMessage) -> str:
    """Return the id that Flower gives a message, from what it is a hash of."""
    body = ProtoMessage(metadata=envelope.metadata)
    body.metadata.message_id = ""
    return get_object_id(
        packed_object("Message", [content_id], body.SerializeToString(deterministic=True))
    )


def guesses_ids(member: Member, message: Message, victim: Message) -> None:
    """Try ids for the victim's message: all is known but a random number, and the time."""
    reply, tree, _ = packed(step_reply(message, 1e6))
    own, content_id = reply.metadata.src_node_id, victim.content.object_id
    envelope = message_to_proto(remove_content_from_message(victim))
    created_at = envelope.metadata.created_at
    assert message_id(content_id, envelope) == victim.metadata.message_id  # So it would be done.
    envelope.metadata.group_id = message.metadata.group_id
    for number in range(GUESSES):
        envelope.metadata.created_at = created_at + (number - GUESSES // 2) * 1e-6
        reply.metadata.__dict__["_reply_to_message_id"] = message_id(content_id, envelope)
        # In the victim's name, and in its own, which tells it whether there is such a message.
        named = victim.metadata.dst_node_id if number % 2 else own
        reply.metadata.__dict__["_src_node_id"] = named
        with refused():
            member.guesses += 1
            member.hits += bool(member.announce(reply, tree).objects_to_push)


def forges(member: Member, message: Message, victim: Message) -> None:
    """Answer the victim's message in the victim's name, its id known; then its own, badly."""
    forged, tree, _ = packed(step_reply(victim, 1e6))
    with refused():
        member.announce(forged, tree)
        member.hits += 1
    inner = step_reply(message, 1e6)
    true_id = inner.metadata.src_node_id
    inner.metadata.__dict__["_src_node_id"] = victim.metadata.dst_node_id
    reply, tree, contents = packed(inner)
    reply.metadata.__dict__["_src_node_id"] = true_id
    response = member.announce(reply, tree)
    member.upload(reply, response.session_id, contents, response.objects_to_push)


def deletes_others(member: Member, message: Message, victim: Message) -> None:
    """Confirm what others have yet to receive: that deletes it, if the id is known."""
    run_id = message.metadata.run_id
    _, tree, _ = packed(step_reply(message, 1.0))
    for object_id in [message.object_id, *(t.object_id for t in iterate_object_tree(tree))]:
        with refused():
            member.client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=member.node, run_id=run_id, message_object_id=object_id
                )
            )
            member.client.PullObject(
                PullObjectRequest(node=member.node, run_id=run_id, object_id=object_id)
            )


def packed_object(kind: str, children: list[str], body: bytes) -> bytes:
    """Return an object as Flower packs it, for better or worse."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def heavy(member: Member, message: Message, victim: Message) -> None:
    """Twenty megabytes of arrays that the model does not have; metrics; a text; one request."""
    arrays = {f"w{i}": Array(np.random.default_rng(i).random(131072)) for i in range(20)}
    for content in (
        {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"n": 1})},
        {"metrics": MetricRecord({f"metric-{i}": [1] * 100 for i in range(3000)})},
        {"config": ConfigRecord({"text": "x" * 8_000_000})},
    ):
        with refused():
            member.send(Message(RecordDict(content), reply_to=message))
    with refused():
        member.upload(message, "session", {"0" * 64: b"x" * (4 * CHUNK)}, ["0" * 64])


def wrong_tree(member: Member, message: Message, victim: Message) -> None:
    """The objects announced are another message's, or loop, or have ids that are none."""
    reply, tree, contents = packed(step_reply(message, 1.0))
    for root in ("0" * 64, "../../etc/passwd", ""):
        with refused():
            member.announce(reply, ObjectTree(object_id=root, children=[tree]))
    looped = deepcopy(tree)
    looped.children.append(ObjectTree(object_id=tree.object_id))
    with refused():
        response = member.announce(reply, looped)
        member.upload(reply, response.session_id, contents, response.objects_to_push)


def misleads(member: Member, message: Message, victim: Message) -> None:
    """Say false things of what others will send: of an empty message's content, and of arrays."""
    reply, tree, _ = packed(step_reply(message, 1.0))
    (content,) = tree.children
    nothing = ObjectTree(object_id="f" * 64)
    content.children.append(ObjectTree(object_id=RecordDict().object_id, children=[nothing]))
    for record in records_of(message.content, ArrayRecord).values():
        false = [ObjectTree(object_id=array.object_id) for array in record.values()]
        content.children.extend(false)
    # Its reply is refused as soon as something in it cannot be read, so that nobody waits for it.
    odd = b"no object of Flower's"
    content.children.append(ObjectTree(object_id=get_object_id(odd)))
    response = member.announce(reply, tree)
    member.upload(reply, response.session_id, {get_object_id(odd): odd}, [get_object_id(odd)])


def other_content(member: Member, message: Message, victim: Message) -> None:
    """Upload something else than what was announced."""
    reply, tree, contents = packed(step_reply(message, 1.0))
    response = member.announce(reply, tree)
    for object_id in response.objects_to_push:
        other = {object_id: contents[object_id][:-1] + b"!"}
        with refused():
            member.upload(reply, response.session_id, other, other)


def odd_metadata(member: Member, message: Message, victim: Message) -> None:
    for name, value in (
        ("_run_id", 7),
        ("_ttl", -1.0),
        ("_created_at", 1e300),
        ("_created_at", float("nan")),
        ("_ttl", float("nan")),
        ("_reply_to_message_id", "f" * 64),
        ("_dst_node_id", member.node_id),
        ("_message_type", "train.unheard-of"),
    ):
        reply = step_reply(message, 1.0)
        reply.metadata.__dict__[name] = value
        with refused():
            member.send(reply)


class Garbage(MetricRecord):
    def deflate(self) -> bytes:
        return add_header_to_object_body(b"\xff garbage", MetricRecord())


def garbage(member: Member, message: Message, victim: Message) -> None:
    """Send metrics that nobody can read."""
    reply = step_reply(message, 0.0)
    reply.content["metrics"] = Garbage({"num-examples": 10})
    member.send(reply)


def sends_twice(member: Member, message: Message, victim: Message) -> None:
    for step in (1e6, -1e6):
        with refused():
            member.send(step_reply(message, step))


def plants(member: Member, message: Message, victim: Message) -> None:
    """Have another reply's objects stored beside one's own: an array of one chunk 8,000 times."""
    record = ArrayRecord({"w": Array(np.random.default_rng(0).random(25_000))})
    (array,) = record.values()
    array.__dict__["_chunks"] = array.slice_array() * 8_000  # 1.6 GB, once it is put together.
    _, tree, contents = packed(Message(RecordDict({"arrays": record}), reply_to=message))
    own, own_tree, own_contents = packed(step_reply(message, 1.0))
    member.planted = tree
    own_tree.children.append(tree)
    response = member.announce(own, own_tree)
    everything = {**contents, **own_contents}
    member.upload(own, response.session_id, everything, everything)


def harvests(member: Member, message: Message, victim: Message) -> None:
    """Answer the next message with what was planted: there is nothing left to upload."""
    reply = Message(RecordDict(), reply_to=message)
    reply.metadata.__dict__["_message_id"] = member.planted.object_id
    assert not member.announce(reply, member.planted).objects_to_push


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        guesses_ids,
        forges,
        deletes_others,
        garbage,
        heavy,
        wrong_tree,
        misleads,
        odd_metadata,
        sends_twice,
        plants,
        harvests,
        other_content,
        uploads_half,
    )
}


def mount(name: str, member: Member, message: Message, victim: Message) -> None:
    """Attack; then say, in too many words, that one has failed, so that nobody waits for more."""
    with refused():
        ATTACKS[name](member, message, victim)
    if name != uploads_half.__name__:
        with refused():
            member.send(Message(Error(2, "\x1b[31m" + "x" * 20_000), reply_to=message))
