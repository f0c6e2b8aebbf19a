"""Screening: each reply of a client is checked alone, and none can stop the server."""

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
from fedif_flower.messages.workspace import AcceptedReply, Arrive, Asked, Workspace

logger = logging.getLogger(__name__)

NO_REPLY = "no reply before the deadline"
CLOSED = "no reply before the round closed"

# What became of a client in a round: its reply was used or refused, its app raised an error,
# nothing came that could be its reply, the round closed before it came, or the operator ended its
# registration meanwhile.
ReplyStatus = Literal["accepted", "refused", "failed", "away", "late", "revoked"]

_APP_RAISED = 2  # Flower's code of an error in a client's app.
_STATUS: Mapping[int, ReplyStatus] = {_APP_RAISED: "failed", REGISTRATION_ENDED: "revoked"}

# Looks at a reply, its arrays, and its node, for the round in which that was asked.
Look = Callable[[RecordDict, ArrayRecord, ClientNode, int], None]


@dataclass(frozen=True)
class RefusedReply:
    """A client without a usable reply, and why."""

    node: ClientNode
    reason: str
    status: ReplyStatus = "refused"

    def __post_init__(self) -> None:
        """Make the reason fit for logs and tables, whatever the client put in it."""
        object.__setattr__(self, "reason", printable(self.reason))


@dataclass(frozen=True)
class Screening:
    """The accepted and refused replies of a round, and the seconds of screening without waiting."""

    accepted: list[AcceptedReply] = field(default_factory=list)
    refused: list[RefusedReply] = field(default_factory=list)
    seconds: float = 0.0


def screen_replies(
    replies: Iterable[Message],
    asked: Mapping[int, Asked],
    workspace: Workspace,
    limits: ReplyLimits,
    *,
    arrive: Arrive | None = None,
    closing: Closing | None = None,
    look: Look | None = None,
    server_round: int = 0,
) -> Screening:
    """Check replies as they come, each on its own; unpack the good ones by partition id.

    Parameters
    ----------
    replies : iterable of Message
        Whatever came back, in any order; it may yet be on its way.
    asked : mapping of int to Asked
        By node id, whose replies count in this round.
    workspace : Workspace
        In the end row k holds the update of accepted reply number k.
    limits : ReplyLimits
        What it must report, and how much of that is believed.
    arrive : callable, optional
        Takes each update ``[d]``, which it may change in place, and its squared norm; returns the
        squared norm of what it left.
    closing : Closing, optional
        Told of every usable reply; without a reply when it is over, a member is late.
    look : callable, optional
        Looks at each reply before it is unpacked; a ReplyError refuses it.
    server_round : int
        The round; who was asked in another one may be silent.

    Returns
    -------
    Screening
        Everybody asked in this round is in one of its lists, or in both who sent a second reply,
        which is refused; senders not asked are refused too.
    """
    workspace.reserve(len(asked))
    closing = closing or Closing()
    desk = _ReplyDesk(asked, workspace, limits, arrive, look, server_round)
    seconds = 0.0
    for reply in replies:
        started = time.perf_counter()
        if desk.take(reply):
            closing.count()
        del reply  # Its arrays are in the workspace: while the next is awaited, they need no room.
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
    """A client sent an error in place of a model, or Flower did in its name."""

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
        By row of the workspace: members' rows are in the order of their partitions.
    refused : list of RefusedReply
        In the order in which they came.
    """

    def __init__(
        self,
        asked: Mapping[int, Asked],
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
        """Accept a reply or refuse it, and tell which; nothing in it stops the server."""
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

    def _read(self, reply: Message, question: Asked) -> AcceptedReply:
        """Return a member's reply, with its update in the member's row.

        Raises
        ------
        ReplyError
            If it is not usable.
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
        # One hundredth and a second more, for a clock that runs fast.
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
        """Refuse what was accepted by itself, and does not fit the others."""
        for row, reason in self._workspace.unfit(self.accepted).items():
            self._refuse(self.accepted.pop(row).node, reason)

    def refuse_absent(self, reason: str, status: ReplyStatus) -> None:
        """Note who was asked in this round and is silent; who was asked earlier may still be."""
        for node_id, question in self._asked.items():
            if question.server_round == self._round and node_id not in self._answered:
                self._refuse(question.node, reason, status)

    def _refuse(self, node: ClientNode, reason: str, status: ReplyStatus = "refused") -> None:
        self.refused.append(RefusedReply(node, reason, status))


def _discount(
    reply: AcceptedReply, question: Asked, workspace: Workspace, row: int
) -> AcceptedReply:
    """Return a late reply with the update that it counts with, which is shortened in its row."""
    workspace.updates[row].mul_(question.factor)
    buffer_update = workspace.buffer_updates[row]  # [b]
    if question.buffers is not None:
        buffer_update.add_(question.received.buffers - question.buffers)
    buffer_update.mul_(question.factor)
    note = f"trained on the model of round {question.server_round}"
    reported = replace(reply.reported, notes=(*reply.reported.notes, note))
    return replace(reply, reported=reported, squared_norm=reply.squared_norm * question.factor**2)
