"""Screening: each client's reply is checked on its own, and no reply can stop the server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from flwr.app import ArrayRecord, Error, Message, RecordDict

from fedif_flower.errors import ReplyError, with_place
from fedif_flower.messages.arrays import arrays_of
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode
from fedif_flower.messages.metrics import (
    ReplyLimits,
    bound_examples,
    lost_loss,
    screen_records,
)
from fedif_flower.messages.polling_grid import REGISTRATION_ENDED, Closing
from fedif_flower.messages.text import printable, reason_of
from fedif_flower.messages.workspace import AcceptedReply, Arrive, Question, Workspace

logger = logging.getLogger(__name__)

NO_REPLY = "no reply before the deadline"
CLOSED = "no reply before the round closed"

# What became of a client in a round:
#   accepted  its reply is used
#   refused   its reply is not usable
#   failed    its app raised an error
#   away      no reply came before the deadline, or its node or Flower sent an error
#   late      no reply came before the round closed
#   revoked   the operator ended its registration meanwhile
ReplyStatus = Literal["accepted", "refused", "failed", "away", "late", "revoked"]

_APP_RAISED = 2  # Flower's code for an error in a client's app.
_STATUS: Mapping[int, ReplyStatus] = {_APP_RAISED: "failed", REGISTRATION_ENDED: "revoked"}

# Looks at a reply, the arrays in it, the node, and the round in which the node was asked.
Look = Callable[[RecordDict, ArrayRecord, ClientNode, int], None]


@dataclass(frozen=True)
class RefusedReply:
    """A client without a usable reply, and the reason."""

    node: ClientNode
    reason: str
    status: ReplyStatus = "refused"

    def __post_init__(self) -> None:
        """Make the reason fit for logs and tables: the client may have written it."""
        object.__setattr__(self, "reason", printable(self.reason))


@dataclass(frozen=True)
class Screening:
    """A round's accepted and refused replies, and the seconds that screening took without waits."""

    accepted: list[AcceptedReply] = field(default_factory=list)
    refused: list[RefusedReply] = field(default_factory=list)
    seconds: float = 0.0


def screen_replies(
    replies: Iterable[Message],
    asked: Mapping[int, Question],
    workspace: Workspace,
    limits: ReplyLimits,
    *,
    arrive: Arrive | None = None,
    closing: Closing | None = None,
    look: Look | None = None,
    server_round: int,
) -> Screening:
    """Check replies as they come, each on its own, and unpack the good ones into the workspace.

    Accepted replies are in the order of their nodes, which is that of their partition ids.

    Parameters
    ----------
    replies : iterable of Message
        The replies in any order; the iterable may wait for replies that have not come yet.
    asked : mapping of int to Question
        The members whose replies count in this round, by node id.
    workspace : Workspace
        Takes the updates: in the end row k holds the update of accepted reply k.
    limits : ReplyLimits
        What a reply must report, and how many examples it is believed to have.
    arrive : callable, optional
        Takes each update ``[d]``, which it may change in place, and its squared norm; returns the
        squared norm of the changed update.
    closing : Closing, optional
        Counts every usable reply. If it has its quorum, or keeps replies for later rounds, a
        missing reply is late; otherwise the member is away.
    look : callable, optional
        Looks at each reply before it is unpacked, and may raise ReplyError to refuse it.
    server_round : int
        The round. Members asked in an earlier round need not reply in this one.

    Returns
    -------
    Screening
        Every member asked in this round is in one of its lists. A member that sent a second reply
        is among the refused as well, and so are senders that were not asked.
    """
    workspace.reserve(len(asked))
    closing = closing or Closing()
    desk = _ReplyDesk(asked, workspace, limits, arrive, look, server_round)
    seconds = 0.0
    for reply in replies:
        started = time.perf_counter()
        if desk.take(reply):
            closing.count()
        # The reply's arrays are in the workspace: free the reply while the next one is awaited.
        del reply
        seconds += time.perf_counter() - started
    desk.refuse_unfit()
    if closing.has_quorum or closing.keeps:
        desk.refuse_absent(CLOSED, "late")
    else:
        desk.refuse_absent(NO_REPLY, "away")
    workspace.compact(sorted(desk.accepted))
    ordered = [desk.accepted[row] for row in sorted(desk.accepted)]
    believed = bound_examples([reply.reported for reply in ordered], limits)
    bounded = [
        replace(reply, reported=reported) for reply, reported in zip(ordered, believed, strict=True)
    ]
    refused = sorted(desk.refused, key=lambda reply: reply.node)
    return Screening(bounded, refused, seconds)


class _ClientSaidError(ReplyError):
    """A client sent an error instead of a model, or Flower did in the client's name."""

    def __init__(self, error: Error) -> None:
        self.status: ReplyStatus = _STATUS.get(error.code, "away")
        reason = reason_of(error)
        if self.status != "revoked":
            reason = f"client error {error.code}: {reason}"
        super().__init__(reason)


class _ReplyDesk:
    """Takes the replies of a round, one by one: each is accepted, or refused with a reason.

    Attributes
    ----------
    accepted : dict of int to AcceptedReply
        Accepted replies by row of the workspace. Members' rows are in the order of their nodes.
    refused : list of RefusedReply
        Refused replies, in the order in which they were refused.
    """

    def __init__(
        self,
        asked: Mapping[int, Question],
        workspace: Workspace,
        limits: ReplyLimits,
        arrive: Arrive | None,
        look: Look | None,
        server_round: int,
    ) -> None:
        nodes = sorted(question.node for question in asked.values())
        self.accepted: dict[int, AcceptedReply] = {}
        self.refused: list[RefusedReply] = []
        self._rows = {node.node_id: row for row, node in enumerate(nodes)}
        self._answered: set[int] = set()
        self._asked = asked
        self._workspace = workspace
        self._limits = limits
        self._arrive = arrive
        self._look = look
        self._round = server_round

    def take(self, reply: Message) -> bool:
        """Accept or refuse a reply; return whether it is accepted. No reply raises an error."""
        node_id = reply.metadata.src_node_id
        question = self._asked.get(node_id)
        if question is None:
            stranger = ClientNode(UNKNOWN_PARTITION, node_id)
            self._refuse(stranger, "reply from a node that was not asked")
            return False
        try:
            self.accepted[self._rows[node_id]] = self._read(reply, question)
        except _ClientSaidError as error:
            self._refuse(question.node, str(error), error.status)
        except ReplyError as error:
            self._refuse(question.node, str(error))
        except Exception as error:
            self._refuse(question.node, f"unreadable reply: {with_place(error)}")
        else:
            return True
        return False

    def _read(self, reply: Message, question: Question) -> AcceptedReply:
        """Screen a member's reply, and write its update into the member's row.

        Raises
        ------
        ReplyError
            If the reply is not usable.
        """
        node = question.node
        if node.node_id in self._answered:
            raise ReplyError("second reply from the same node")
        self._answered.add(node.node_id)
        if reply.has_error():
            raise _ClientSaidError(reply.error)
        content = reply.content
        if self._look is not None:
            self._look(content, arrays_of(content), node, question.server_round)
        # One per cent and one second of tolerance, because the member's clock may run fast.
        max_seconds = 1.01 * (time.perf_counter() - question.at) + 1.0
        reported = screen_records(content, self._limits, max_seconds)
        row = self._rows[node.node_id]
        try:
            unpacked = self._workspace.unpack(content, node, row, question.received, self._arrive)
        except ReplyError as error:
            raise ReplyError(f"{error}{lost_loss(content)}") from error
        usable = AcceptedReply(node, reported, *unpacked)
        if question.server_round != self._round:
            return _discount(usable, question, self._workspace, row)
        return usable

    def refuse_unfit(self) -> None:
        """Refuse replies that are fine on their own but odd beside the others."""
        for row, reason in self._workspace.unfit(self.accepted).items():
            self._refuse(self.accepted.pop(row).node, reason)

    def refuse_absent(self, reason: str, status: ReplyStatus) -> None:
        """Refuse the members asked in this round without a reply; earlier ones may still answer."""
        for node_id, question in self._asked.items():
            if question.server_round == self._round and node_id not in self._answered:
                self._refuse(question.node, reason, status)

    def _refuse(self, node: ClientNode, reason: str, status: ReplyStatus = "refused") -> None:
        self.refused.append(RefusedReply(node, reason, status))


def _discount(
    reply: AcceptedReply, question: Question, workspace: Workspace, row: int
) -> AcceptedReply:
    """Shorten a late reply's update in its row by its factor; return the reply with a note."""
    workspace.updates[row].mul_(question.factor)
    buffer_update = workspace.buffer_updates[row]  # [b]
    # Measure the change of buffers from other buffers than those sent, see Question.buffers.
    if question.buffers is not None:
        buffer_update.add_(question.received.buffers - question.buffers)
    buffer_update.mul_(question.factor)
    note = f"trained on the model of round {question.server_round}"
    reported = replace(reply.reported, notes=(*reply.reported.notes, note))
    return replace(reply, reported=reported, squared_norm=reply.squared_norm * question.factor**2)
