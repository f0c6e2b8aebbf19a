"""What a registered member may do to the SuperLink: answer in its own name, within bounds, whole.

Flower 1.41 stores a reply under whatever sender the reply names, stores as much of it as its sender
uploads, and hands it to the ServerApp before it is all there. This guard stands in front of the
handlers that do so:

- a reply whose sender is not the authenticated node is refused;
- a reply may weigh what the heaviest message of its run weighs, and a little more: objects, bytes,
  and bytes once repeated chunks are put together. What stands in a message twice is sent once, and
  counts twice: a new model has many layers of the same zeros and ones, and comes back with none;
- the ServerApp is told of a reply only once all of it is there.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord
from flwr.proto.message_pb2 import ObjectTree, PushObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import OBJECT_PUSH_SESSION_TTL_SECONDS
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_id,
    iterate_object_tree,
)
from starlette.exceptions import HTTPException

logger = logging.getLogger(__name__)
Handler = Callable[..., Any]

# A reply may hold metrics that the message does not: their number and size, per reply.
SPARE_OBJECTS = 16
SPARE_BYTES = 256 * 1024
MAX_RUNS = 64
TOO_HEAVY = (
    "the reply weighs more than the message that it answers; a model must come back in the types "
    "it was sent in; masked replies, and those in float64 to a model in float32, need "
    "FEDIF_REPLY_BUDGET=2 in the environment of the SuperLink"
)


def objects_of(tree: ObjectTree) -> set[str]:
    """Return the ids of a message's objects."""
    return {node.object_id for node in iterate_object_tree(tree)}


class Weight(NamedTuple):
    """Number of objects, their bytes, and those bytes that are not an array's values."""

    objects: int = 0
    size: int = 0
    records: int = 0

    @classmethod
    def of_object(cls, kind: str, size: int) -> Weight:
        """Return what one object of a kind weighs by itself."""
        if kind == "ArrayChunk":
            return cls(objects=1, size=size, records=0)
        return cls(objects=1, size=size, records=size)

    def plus(self, other: Weight) -> Weight:
        """Return what both weigh together."""
        return Weight(
            objects=self.objects + other.objects,
            size=self.size + other.size,
            records=self.records + other.records,
        )

    def exceeds(self, limit: Weight) -> bool:
        """Return whether this is more than a limit in one of the three respects."""
        return any(value > most for value, most in zip(self, limit, strict=True))

    def largest(self, other: Weight) -> Weight:
        """Return the larger one of two weights in each respect."""
        return Weight(
            objects=max(self.objects, other.objects),
            size=max(self.size, other.size),
            records=max(self.records, other.records),
        )


class Piece(NamedTuple):
    """An object of a message: what it is, its bytes, and what it consists of, repeats included."""

    kind: str
    size: int
    parts: Sequence[str]

    @classmethod
    def read(cls, content: bytes) -> Piece:
        """Read an object as Flower sends it."""
        kind, children, _ = get_object_head_values_from_object_content(content)
        parts = children
        if kind == "Array":
            parts = chunks_of(content, children)
        elif kind == "ArrayRecord":
            parts = list(json.loads(get_object_body(content, ArrayRecord)).values())
        return cls(kind, len(content), parts)

    def weight(self) -> Weight:
        """Return what it weighs by itself."""
        return Weight.of_object(self.kind, self.size)


def chunks_of(content: bytes, children: Sequence[str]) -> list[str]:
    """Return the chunks of an array's values in their order, repeats included."""
    order = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return [children[index] for index in order]


@dataclass
class SentMessages:
    """The messages of a run's last push, by their ids, and the heaviest of the run."""

    messages: list[str] = field(default_factory=list)
    pieces: dict[str, Piece] = field(default_factory=dict)
    heaviest: Weight = field(default_factory=Weight)
    is_weighed: bool = True

    def replace(self, trees: Collection[ObjectTree]) -> None:
        """Take note of messages that are about to be uploaded."""
        self.weigh()
        self.messages = [tree.object_id for tree in trees]
        # Flower keeps an object that the next message has, too: it is not sent again.
        in_messages = set[str]().union(*map(objects_of, trees))
        self.pieces = {i: piece for i, piece in self.pieces.items() if i in in_messages}
        self.is_weighed = False

    def add(self, object_id: str, content: bytes) -> None:
        """Take note of an object of a message."""
        self.pieces[object_id] = Piece.read(content)
        self.is_weighed = False

    def weigh(self) -> Weight:
        """Return the heaviest message that the run has sent so far, in each respect."""
        if not self.is_weighed:
            weights: dict[str, Weight] = {}
            for message in self.messages:
                self.heaviest = self.heaviest.largest(self._weight_of(message, weights))
            self.is_weighed = True
        return self.heaviest

    def _weight_of(self, object_id: str, known: dict[str, Weight]) -> Weight:
        """Return what an object weighs with all that it consists of, as often as it stands there.

        What has not come yet weighs nothing.
        """
        if object_id not in self.pieces:
            return Weight()
        if object_id not in known:
            piece = self.pieces[object_id]
            weight = piece.weight()
            for part in piece.parts:
                weight = weight.plus(self._weight_of(part, known))
            known[object_id] = weight
        return known[object_id]


@dataclass
class Upload:
    """A reply on its way: the objects in it, what it may weigh, and what is still to come."""

    node_id: int
    run_id: int
    objects: set[str]
    limit: Weight
    pending: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)  # Of what has come, in bytes.
    arrays: dict[str, list[str]] = field(default_factory=dict)  # The chunks that each consists of.
    touched: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Begin with what is announced: objects without content."""
        self.weight = Weight(len(self.objects))

    def accepts(self, contents: Iterable[tuple[str, bytes]]) -> bool:
        """Return whether the reply is within its bounds with more objects, each after its id."""
        try:
            for object_id, content in contents:
                if self.is_heavy():
                    return False
                self._weigh(object_id, content)
            if self.is_heavy():
                return False
            if not self.objects <= self.sizes.keys():
                return True  # The rest is still to come.
            return self._size_put_together() <= self.limit.size
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return False

    def _weigh(self, object_id: str, content: bytes) -> None:
        """Take an object into account, once: it may be sent again."""
        if object_id in self.sizes:
            return
        kind, children, _ = get_object_head_values_from_object_content(content)
        self.sizes[object_id] = len(content)
        # It was counted as an object when it was announced.
        self.weight = self.weight.plus(Weight.of_object(kind, len(content))._replace(objects=0))
        if kind == "Array" and not self.is_heavy():
            self.arrays[object_id] = chunks_of(content, children)

    def _size_put_together(self) -> int:
        """Return the bytes of all arrays: one that has a chunk twice has its bytes twice."""
        total = 0
        for chunks in self.arrays.values():
            total += sum(self.sizes[chunk] for chunk in chunks)
        return total

    def is_heavy(self) -> bool:
        """Return whether it weighs more than it may in one of the three respects."""
        return self.weight.exceeds(self.limit)

    def is_fresh(self) -> bool:
        """Return whether Flower still waits for the rest of it."""
        return time.monotonic() - self.touched < OBJECT_PUSH_SESSION_TTL_SECONDS


class ReplyGuard:
    """Stands in front of Flower's handlers of what members and the ServerApp send.

    Parameters
    ----------
    budget : float
        A reply may weigh this many times the heaviest message of its run, >= 1. Replies in
        float64 to a model in float32 need 2.
    """

    def __init__(self, budget: float = 1.0) -> None:
        self._budget = budget
        self._lock = Lock()
        self._sent: dict[int, SentMessages] = {}  # Who sent last is at the end.
        self._uploads: dict[str, Upload] = {}  # By the message that the reply answers.
        self._sessions: dict[str, str] = {}
        # Held while a reply is announced or replies are handed on: what Flower has of a reply
        # before this guard knows of it would be taken for all of it.
        self._handing_on = Lock()

    def install(self, fleet: Any, runtime: Any) -> None:
        """Stand in front of the handlers in Flower's two modules."""
        fleet.push_messages = partial(self.announce_reply, fleet.push_messages)
        fleet.push_object = partial(self.upload, fleet.push_object)
        runtime.push_messages = partial(self.send, runtime.push_messages)
        runtime.push_object = partial(self.send_object, runtime.push_object)
        runtime.pull_messages = partial(self.pull_replies, runtime.pull_messages)

    # -- what members call ----------------------------------------------------------------------

    def announce_reply(self, handler: Handler, request: Any, state: Any) -> Any:
        """Let a member announce one reply, in its own name and no larger than its run allows."""
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise HTTPException(400, "one reply at a time")
        metadata = request.messages_list[0].metadata
        tree = request.message_object_trees[0]
        node_id = request.node.node_id
        if metadata.src_node_id != node_id:
            raise HTTPException(403, "a reply counts for the node that sends it")
        if metadata.message_id != tree.object_id:
            raise HTTPException(400, "the objects are not those of the reply")
        limit = self._limit(metadata.run_id)
        coming = Upload(node_id, metadata.run_id, objects_of(tree), limit)
        if coming.is_heavy():
            raise HTTPException(413, f"{len(coming.objects)} objects; allowed: {limit.objects}")
        with self._handing_on:
            response = handler(request=request, state=state)
            coming.pending = set(response.objects_to_push)
            if coming.pending:
                with self._lock:
                    self._expect(response.session_id, metadata.reply_to_message_id, coming)
        return response

    def _expect(self, session_id: str, message_id: str, coming: Upload) -> None:
        """Take note of a reply to a message: one that is announced again is the same."""
        self._uploads = {
            answered_id: upload
            for answered_id, upload in self._uploads.items()
            if upload.is_fresh()
        }
        self._sessions = {
            session: answered_id
            for session, answered_id in self._sessions.items()
            if answered_id in self._uploads
        }
        upload = self._uploads.setdefault(message_id, coming)
        if coming.pending <= upload.objects:
            self._sessions[session_id] = message_id

    def upload(self, handler: Handler, request: Any, state: Any) -> Any:
        """Let a member upload what it has announced, as long as it is not too much."""
        object_id = request.object_id
        content = request.object_content
        is_true = get_object_id(content) == object_id  # Else one would be weighed for another.
        with self._lock:
            message_id = self._sessions.get(request.session_id, "")
            upload = self._uploads.get(message_id)
            if upload is None or upload.node_id != request.node.node_id:
                return PushObjectResponse(stored=False)
            if object_id not in upload.pending or not is_true:
                return PushObjectResponse(stored=False)
            is_accepted = upload.accepts([(object_id, content)])
        if not is_accepted:
            # The ServerApp is told at once that there will be no reply.
            with self._handing_on:
                state.delete_messages(message_ins_ids={message_id})
                with self._lock:
                    self._uploads.pop(message_id, None)
            logger.warning("node %d, run %d: %s", upload.node_id, upload.run_id, TOO_HEAVY)
            raise HTTPException(413, TOO_HEAVY)
        response = handler(request=request, state=state)
        if response.stored:
            with self._lock:
                upload.touched = time.monotonic()
                upload.pending.discard(object_id)
        return response

    # -- what the ServerApp calls ---------------------------------------------------------------

    def send(self, handler: Handler, request: Any, state: Any, task: Any) -> Any:
        """Take note of what messages consist of."""
        response = handler(request=request, state=state, task=task)
        with self._lock:
            # Taken out and put in again: the run that sent last is at the end.
            sent = self._sent.pop(task.run_id, SentMessages())
            self._sent[task.run_id] = sent
            while len(self._sent) > MAX_RUNS:
                first_run = next(iter(self._sent))
                del self._sent[first_run]
            sent.replace(request.message_object_trees)
        return response

    def send_object(self, handler: Handler, request: Any, state: Any, task: Any) -> Any:
        """Take note of what an object of a message weighs."""
        with self._lock:
            sent = self._sent.setdefault(task.run_id, SentMessages())
            sent.add(request.object_id, request.object_content)
        return handler(request=request, state=state, task=task)

    def pull_replies(self, handler: Handler, request: Any, state: Any, task: Any) -> Any:
        """Return the replies of which every object has arrived, and that are within bounds."""
        with self._handing_on:
            with self._lock:
                incomplete = set()
                for message_id, upload in self._uploads.items():
                    if upload.pending and upload.is_fresh():
                        incomplete.add(message_id)
            answerable = set(request.message_ids) - incomplete
            narrowed = PullAppMessagesRequest(message_ids=answerable)
            response = handler(request=narrowed, state=state, task=task)
        replies = response.messages_list
        trees = response.message_object_trees
        for i in reversed(range(len(replies))):  # From the end: each deletion moves what follows.
            if not self._is_light(replies[i].metadata, objects_of(trees[i]), state):
                # Flower says next time that there will be no reply.
                del replies[i]
                del trees[i]
        return response

    def _is_light(self, metadata: Any, objects: set[str], state: Any) -> bool:
        """Return whether a reply is within its bounds, with what others have sent of it."""
        node_id = metadata.src_node_id
        run_id = metadata.run_id
        limit = self._limit(run_id)
        with self._lock:
            upload = self._uploads.pop(metadata.reply_to_message_id, None)
        if upload is None or upload.pending or upload.objects != objects:
            upload = Upload(node_id, run_id, objects, limit)
        # Flower asks nobody for an object that another member has sent already.
        not_weighed = objects - upload.sizes.keys()
        is_light = upload.accepts((i, state.get_object(run_id, i) or b"") for i in not_weighed)
        if not is_light:
            logger.warning("node %d, run %d: %s", node_id, run_id, TOO_HEAVY)
        return is_light

    def _limit(self, run_id: int) -> Weight:
        """Return what a reply may weigh."""
        with self._lock:
            heaviest = self._sent.get(run_id, SentMessages()).weigh()
        return Weight(
            objects=int(heaviest.objects * self._budget) + SPARE_OBJECTS,
            size=int(heaviest.size * self._budget) + SPARE_BYTES,
            records=int(heaviest.records * self._budget) + SPARE_BYTES,
        )
