"""A guard of the SuperLink: members answer in their own name, within bounds, and completely.

Flower sends a message as a tree of objects: records, arrays, and chunks of arrays' values. Each
object is named by its hash. The sender first announces the tree, then uploads the objects.

Flower 1.41 stores a reply under whatever sender the reply names. It stores as much of the reply as
its sender uploads, and hands the reply to the ServerApp before all objects are there. The guard
stands in front of the handlers that do so:

- It refuses a reply whose sender is not the authenticated node, whose id is not the hash of what
  was announced, or whose times are no numbers: Flower could not read such a reply from its
  database, and the error would end the run.
- It tells Flower which objects a message has, but not which of them holds which. Flower believes
  the first who says what an object holds, and refuses all messages that say otherwise. A member
  could say something false of an object that others are about to send, as of the next message of
  the server.
- It bounds a reply by the heaviest message that its run sent, and a little more. The bounds are on
  the number of objects, on their bytes, and on the bytes of the unpacked arrays, in which chunks
  may repeat. An object that a message holds twice is sent once, but counts twice: a new model has
  many layers of the same zeros and ones, and the trained model has different values in each.
- It tells the ServerApp of a reply only once all its objects are there.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord
from flwr.proto.message_pb2 import Message as ProtoMessage
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

# A reply may have this much more than the message: it has metrics that the message has not.
SPARE_OBJECTS = 16
SPARE_BYTES = 256 * 1024
MAX_RUNS = 64  # The guard knows the heaviest messages of so many runs: those that sent last.
TOO_HEAVY = (
    "the reply weighs more than the message that it answers; a model must come back in the types "
    "it was sent in; masked replies, and those in float64 to a model in float32, need "
    "FEDIF_REPLY_BUDGET=2 in the environment of the SuperLink"
)
INCOMPLETE = "the reply was not uploaded completely"
UNREADABLE = "the reply cannot be read"


def objects_of(tree: ObjectTree) -> set[str]:
    """Return the ids of the objects in a message's tree."""
    return {node.object_id for node in iterate_object_tree(tree)}


def flattened(tree: ObjectTree) -> ObjectTree:
    """Return a message's tree in which the message holds all other objects itself, each once.

    Nobody needs more: whoever puts the message together reads in each object what it holds.
    """
    object_ids = dict.fromkeys(node.object_id for node in iterate_object_tree(tree))
    del object_ids[tree.object_id]
    leaves = [ObjectTree(object_id=object_id) for object_id in object_ids]
    return ObjectTree(object_id=tree.object_id, children=leaves)


def message_id_of(message: ProtoMessage, content_ids: Sequence[str]) -> str:
    """Return the id that Flower gives a message: the hash of its metadata, error and content's id.

    Parameters
    ----------
    message : ProtoMessage
        The message; its own id and content are not looked at.
    content_ids : sequence of str
        The id of its content; empty if it has an error in place of a content.
    """
    body = ProtoMessage(metadata=message.metadata)
    if message.HasField("error"):
        body.error.CopyFrom(message.error)
    body.metadata.message_id = ""
    packed_body = body.SerializeToString(deterministic=True)
    head = f"Message {','.join(content_ids)} {len(packed_body)}"
    return get_object_id(head.encode() + b"\x00" + packed_body)


class Weight(NamedTuple):
    """A message's number of objects, their bytes, and their bytes without the values of arrays."""

    objects: int = 0
    size: int = 0
    records: int = 0

    @classmethod
    def of_object(cls, kind: str, size: int) -> Weight:
        """Return the weight of one object without its children.

        ``kind`` is Flower's name of the object's class, and ``size`` its bytes.
        """
        if kind == "ArrayChunk":
            return cls(objects=1, size=size, records=0)
        return cls(objects=1, size=size, records=size)

    def plus(self, other: Weight) -> Weight:
        """Return the sum of two weights."""
        return Weight(
            objects=self.objects + other.objects,
            size=self.size + other.size,
            records=self.records + other.records,
        )

    def exceeds(self, limit: Weight) -> bool:
        """Return whether one of the three numbers is above that of a limit."""
        return any(value > most for value, most in zip(self, limit, strict=True))

    def largest(self, other: Weight) -> Weight:
        """Return the larger of two weights' numbers, for each of the three."""
        return Weight(
            objects=max(self.objects, other.objects),
            size=max(self.size, other.size),
            records=max(self.records, other.records),
        )


class Piece(NamedTuple):
    """An object of a message: its kind, its size in bytes, and the ids of its children.

    A child is listed in ``parts`` as often as the object holds it.
    """

    kind: str
    size: int
    parts: Sequence[str]

    @classmethod
    def read(cls, content: bytes) -> Piece:
        """Read an object from the bytes in which Flower sends it."""
        kind, children, _ = get_object_head_values_from_object_content(content)
        parts = children  # Each child once: arrays and records say how often they hold it.
        if kind == "Array":
            parts = chunks_of(content, children)
        elif kind == "ArrayRecord":
            parts = list(json.loads(get_object_body(content, ArrayRecord)).values())
        return cls(kind, len(content), parts)

    def weight(self) -> Weight:
        """Return the weight of the object without its children."""
        return Weight.of_object(self.kind, self.size)


def chunks_of(content: bytes, children: Sequence[str]) -> list[str]:
    """Return the ids of the chunks of an array's values, in order, repeated where they repeat.

    Parameters
    ----------
    content : bytes
        The object of the array, as Flower sends it.
    children : sequence of str
        The ids of its chunks, each once.
    """
    order = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return [children[index] for index in order]


@dataclass
class SentMessages:
    """The messages that a run pushed last, and the weight of the heaviest message of the run.

    Attributes
    ----------
    messages : list of str
        The ids of the messages of the last push.
    pieces : dict of str to Piece
        Their objects by id, as far as they have been uploaded.
    heaviest : Weight
        The largest number of objects, bytes and bytes of records of all messages weighed so far.
    is_weighed : bool
        Whether ``heaviest`` takes all objects in ``pieces`` into account.
    """

    messages: list[str] = field(default_factory=list)
    pieces: dict[str, Piece] = field(default_factory=dict)
    heaviest: Weight = field(default_factory=Weight)
    is_weighed: bool = True

    def replace(self, trees: Collection[ObjectTree]) -> None:
        """Remember the messages of a new push, whose objects are uploaded next."""
        self.weigh()  # The messages of the push before still count.
        self.messages = [tree.object_id for tree in trees]
        # Objects that the new messages share with the last ones are kept: Flower has them already,
        # so they are not uploaded again.
        in_messages = set[str]().union(*map(objects_of, trees))
        self.pieces = {i: piece for i, piece in self.pieces.items() if i in in_messages}
        self.is_weighed = False

    def add(self, object_id: str, content: bytes) -> None:
        """Remember an object of a message."""
        self.pieces[object_id] = Piece.read(content)
        self.is_weighed = False

    def weigh(self) -> Weight:
        """Return the largest number, for each of the three, of all messages of the run so far."""
        if not self.is_weighed:
            weights: dict[str, Weight] = {}
            for message in self.messages:
                self.heaviest = self.heaviest.largest(self._weight_of(message, weights))
            self.is_weighed = True
        return self.heaviest

    def _weight_of(self, object_id: str, weights: dict[str, Weight]) -> Weight:
        """Return the weight of an object and its descendants, each as often as it is held.

        An object that has not been uploaded yet weighs nothing. ``weights`` caches the weights.
        """
        if object_id not in self.pieces:
            return Weight()
        if object_id not in weights:
            piece = self.pieces[object_id]
            weight = piece.weight()
            for part in piece.parts:
                weight = weight.plus(self._weight_of(part, weights))
            weights[object_id] = weight
        return weights[object_id]


@dataclass
class Upload:
    """A reply whose objects are being uploaded.

    Attributes
    ----------
    node_id : int
        The node that announced the reply.
    run_id : int
        Its run.
    objects : set of str
        The ids of all objects in the reply.
    limit : Weight
        The most that the reply may weigh.
    pending : set of str
        The ids of objects that Flower still waits for.
    sizes : dict of str to int
        The bytes of each object that was weighed.
    arrays : dict of str to list of str
        The ids of the chunks of each array that was weighed, in order.
    touched : float
        When an object was stored last, on the monotonic clock.
    weight : Weight
        The weight of all objects announced and all contents weighed so far.
    refusal : str
        Why the reply is refused, if it is.
    """

    node_id: int
    run_id: int
    objects: set[str]
    limit: Weight
    pending: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    touched: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Begin with the weight of what is announced: a number of objects, none with content."""
        self.weight = Weight(len(self.objects))
        self.refusal = TOO_HEAVY

    def accepts(self, contents: Iterable[tuple[str, bytes]]) -> bool:
        """Add the contents of objects, and return whether the reply is still within its bounds.

        ``contents`` has pairs of an object's id and its bytes, which are empty if the object was
        not uploaded. A reply that is not complete, or cannot be read, is out of bounds.
        """
        try:
            for object_id, content in contents:
                if self.is_heavy():
                    return False
                if not content:
                    self.refusal = INCOMPLETE
                    return False
                self._weigh(object_id, content)
            if self.is_heavy():
                return False
            if not self.objects <= self.sizes.keys():
                return True  # The rest is still to come.
            return self._size_put_together() <= self.limit.size
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self.refusal = UNREADABLE
            return False

    def _weigh(self, object_id: str, content: bytes) -> None:
        """Add an object's weight, unless it was added before: it may be sent again."""
        if object_id in self.sizes:
            return
        kind, children, _ = get_object_head_values_from_object_content(content)
        self.sizes[object_id] = len(content)
        # The number of objects was counted when the reply was announced.
        self.weight = self.weight.plus(Weight.of_object(kind, len(content))._replace(objects=0))
        if kind == "Array" and not self.is_heavy():
            self.arrays[object_id] = chunks_of(content, children)

    def _size_put_together(self) -> int:
        """Return the bytes of all arrays as the ServerApp unpacks them, with repeated chunks."""
        total = 0
        for chunks in self.arrays.values():
            total += sum(self.sizes[chunk] for chunk in chunks)
        return total

    def is_heavy(self) -> bool:
        """Return whether one of the three numbers of its weight is above the limit."""
        return self.weight.exceeds(self.limit)

    def is_fresh(self) -> bool:
        """Return whether Flower still waits for objects of this reply."""
        return time.monotonic() - self.touched < OBJECT_PUSH_SESSION_TTL_SECONDS


class ReplyGuard:
    """Stands in front of Flower's handlers for the messages of members and of the ServerApp.

    Each method that does so gets Flower's ``handler`` first, and calls it with the other arguments.

    Parameters
    ----------
    budget : float
        A reply may weigh this many times the heaviest message of its run, >= 1. Replies in
        float64 to a model in float32 need 2.
    """

    def __init__(self, budget: float = 1.0) -> None:
        self._budget = budget
        self._lock = Lock()
        self._sent: dict[int, SentMessages] = {}  # By run; the run that sent last is at the end.
        self._uploads: dict[str, Upload] = {}  # By the id of the message that the reply answers.
        self._sessions: dict[str, str] = {}  # Those ids by Flower's id of an upload session.
        # Held while a reply is announced, and while replies are handed on. Flower knows a reply
        # before the guard does; if replies were handed on in between, an incomplete reply that the
        # guard does not know yet would pass as complete.
        self._handing_on = Lock()

    def install(self, fleet: Any, runtime: Any) -> None:
        """Replace the handlers in two of Flower's modules by the methods of this guard.

        Parameters
        ----------
        fleet : module
            Flower's handlers for requests of SuperNodes.
        runtime : module
            Flower's handlers for requests of the ServerApp.
        """
        fleet.push_messages = partial(self.announce_reply, fleet.push_messages)
        fleet.push_object = partial(self.upload, fleet.push_object)
        runtime.push_messages = partial(self.send, runtime.push_messages)
        runtime.push_object = partial(self.send_object, runtime.push_object)
        runtime.pull_messages = partial(self.pull_replies, runtime.pull_messages)

    # -- what members call ----------------------------------------------------------------------

    def announce_reply(self, handler: Handler, request: Any, state: Any) -> Any:
        """Let a member announce one reply in its own name.

        Raises
        ------
        HTTPException
            With status 400 if the request has not exactly one reply with its own objects, or a
            time that is no finite number, 403 if another node is named as the sender, 413 if the
            reply has too many objects.
        """
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise HTTPException(400, "one reply at a time")
        (reply,) = request.messages_list
        (tree,) = request.message_object_trees
        metadata = reply.metadata
        node_id = request.node.node_id
        if metadata.src_node_id != node_id:
            raise HTTPException(403, "a reply counts for the node that sends it")
        times = [metadata.created_at, metadata.ttl, *request.clientapp_runtime_list]
        if not all(map(math.isfinite, times)):
            raise HTTPException(400, "a time of the reply is no finite number")
        content_ids = [content.object_id for content in tree.children]
        if not metadata.message_id == tree.object_id == message_id_of(reply, content_ids):
            raise HTTPException(400, "the objects are not those of the reply")
        tree.CopyFrom(flattened(tree))
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
        """Remember a reply that is about to be uploaded, and its session.

        A reply that is announced again is the same one, whose upload goes on in another session.
        The caller holds the lock.
        """
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
        """Let a member upload an object of a reply that it announced.

        Raises
        ------
        HTTPException
            With status 413 if the reply then weighs too much, or cannot be read; the message that
            it answers is deleted.
        """
        object_id = request.object_id
        content = request.object_content
        # The id is a hash of the content. Without this check, a small object could be weighed in
        # place of a large one.
        is_true = get_object_id(content) == object_id
        with self._lock:
            message_id = self._sessions.get(request.session_id, "")
            upload = self._uploads.get(message_id)
            if upload is None or upload.node_id != request.node.node_id:
                return PushObjectResponse(stored=False)
            if object_id not in upload.pending or not is_true:
                return PushObjectResponse(stored=False)
            is_accepted = upload.accepts([(object_id, content)])
        if not is_accepted:
            # Without the message that it answers, Flower tells the ServerApp at once that there
            # will be no reply.
            with self._handing_on:
                state.delete_messages(message_ins_ids={message_id})
                with self._lock:
                    self._uploads.pop(message_id, None)
            logger.warning("node %d, run %d: %s", upload.node_id, upload.run_id, upload.refusal)
            raise HTTPException(413, upload.refusal)
        response = handler(request=request, state=state)
        if response.stored:
            with self._lock:
                upload.touched = time.monotonic()
                upload.pending.discard(object_id)
        return response

    # -- what the ServerApp calls ---------------------------------------------------------------

    def send(self, handler: Handler, request: Any, state: Any, task: Any) -> Any:
        """Hand on messages of the ServerApp, and remember which objects they consist of."""
        for tree in request.message_object_trees:
            tree.CopyFrom(flattened(tree))
        response = handler(request=request, state=state, task=task)
        with self._lock:
            # Taken out and put in again, so that the run that sent last is at the end.
            sent = self._sent.pop(task.run_id, SentMessages())
            self._sent[task.run_id] = sent
            while len(self._sent) > MAX_RUNS:
                first_run = next(iter(self._sent))
                del self._sent[first_run]
            sent.replace(request.message_object_trees)
        return response

    def send_object(self, handler: Handler, request: Any, state: Any, task: Any) -> Any:
        """Hand on an object of a message, and remember its weight."""
        with self._lock:
            sent = self._sent.setdefault(task.run_id, SentMessages())
            sent.add(request.object_id, request.object_content)
        return handler(request=request, state=state, task=task)

    def pull_replies(self, handler: Handler, request: Any, state: Any, task: Any) -> Any:
        """Return the replies that are complete and within their bounds.

        A reply that is not complete yet stays where it is. A reply that is too heavy,
        or cannot be read, is dropped.
        """
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
        """Return whether a complete reply is within its bounds, with objects that others sent."""
        node_id = metadata.src_node_id
        run_id = metadata.run_id
        limit = self._limit(run_id)
        with self._lock:
            upload = self._uploads.pop(metadata.reply_to_message_id, None)
        if upload is None or upload.pending or upload.objects != objects:
            upload = Upload(node_id, run_id, objects, limit)
        # Flower does not ask a member for an object that another member has sent already. Such
        # objects were not weighed during this reply's upload, so they are read from Flower's store.
        not_weighed = objects - upload.sizes.keys()
        is_light = upload.accepts((i, state.get_object(run_id, i) or b"") for i in not_weighed)
        if not is_light:
            logger.warning("node %d, run %d: %s", node_id, run_id, upload.refusal)
        return is_light

    def _limit(self, run_id: int) -> Weight:
        """Return the most that a reply in a run may weigh."""
        with self._lock:
            heaviest = self._sent.get(run_id, SentMessages()).weigh()
        return Weight(
            objects=int(heaviest.objects * self._budget) + SPARE_OBJECTS,
            size=int(heaviest.size * self._budget) + SPARE_BYTES,
            records=int(heaviest.records * self._budget) + SPARE_BYTES,
        )
