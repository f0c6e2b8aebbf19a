"""Screening: each reply of a client is checked alone, and none can stop the server."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import psutil
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.aggregators.spread import bound_by_spread
from fedif_flower.errors import ReplyError
from fedif_flower.messages.arrays import ArraySpec, arrays_of, refuse_advances
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode
from fedif_flower.messages.instructions import VECTOR_KEY, VECTOR_RECORD
from fedif_flower.messages.layout import ParameterLayout, UnpackedUpdate, require_believable
from fedif_flower.messages.metrics import (
    ClientRecords,
    ReplyLimits,
    bound_examples,
    lost_loss,
    screen_records,
)
from fedif_flower.messages.polling_grid import REGISTRATION_ENDED, Closing
from fedif_flower.messages.text import printable, reason_of
from fedif_flower.round import ModelVectors, RoundUpdates

logger = logging.getLogger(__name__)

# The updates of a round may take this share of the memory that is free.
SHARE_OF_MEMORY = 0.25
NO_REPLY = "no reply before the deadline"
CLOSED = "no reply before the round closed"

# What became of a client in a round: its reply was used or refused, its app raised an error,
# nothing came that could be its reply, the round closed before it came, or the operator ended its
# registration meanwhile.
Status = Literal["accepted", "refused", "failed", "away", "late", "revoked"]

_STATUS: Mapping[int, Status] = {2: "failed", REGISTRATION_ENDED: "revoked"}  # 2: the app raised.

Arrive = Callable[[Tensor, float], float]
# Looks at a reply, its arrays, and its node, for the round in which that was asked.
Look = Callable[[RecordDict, ArrayRecord, ClientNode, int], None]


@dataclass(frozen=True)
class AcceptedReply:
    """A reply whose update lies in a row of the workspace."""

    node: ClientNode
    reported: ClientRecords
    squared_norm: float
    counters: Mapping[str, Tensor]
    advances: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_examples(self) -> float:
        """The examples that count for it."""
        return self.reported.num_examples


@dataclass(frozen=True)
class Asked:
    """What a member was asked, in this round or in an earlier one.

    Attributes
    ----------
    node : ClientNode
        The member.
    received : ModelVectors
        The model it was sent, against which its reply is screened.
    at : float
        When, by :func:`time.perf_counter`: it has not trained for longer.
    server_round : int
        The round.
    factor : float
        By which its update is multiplied, in [0, 1].
    buffers : Tensor, optional
        ``[b]``: the buffers that its own are compared with. Default: those it was sent. They are
        what a layer has seen, and no steps: a model that has come to them already stays there.
    """

    node: ClientNode
    received: ModelVectors
    at: float = -math.inf
    server_round: int = 0
    factor: float = 1.0
    buffers: Tensor | None = None


@dataclass(frozen=True)
class RefusedReply:
    """A client without a usable reply, and why."""

    node: ClientNode
    reason: str
    status: Status = "refused"

    def __post_init__(self) -> None:
        """Make the reason fit for logs and tables, whatever the client put in it."""
        object.__setattr__(self, "reason", printable(self.reason))


@dataclass(frozen=True)
class Screening:
    """The accepted and refused replies of a round, and the seconds of screening without waiting."""

    accepted: list[AcceptedReply] = field(default_factory=list)
    refused: list[RefusedReply] = field(default_factory=list)
    seconds: float = 0.0


class Workspace:
    """Rows for the clients' updates, kept from round to round to spare the page faults.

    Rows that would take more than a quarter of the free memory lie in a file that is mapped into
    memory: the system keeps of it what fits. The file has no name, and is gone with the process.

    Parameters
    ----------
    layout : ParameterLayout
        The model's.
    has_vector : bool
        Whether each reply holds a vector ``[d]`` beside its model, as SCAFFOLD's do.
    keeps_models : bool
        Whether the models are kept as they come, beside the updates, in as much memory again.

    Attributes
    ----------
    updates, buffer_updates : Tensor
        ``[m, d]`` and ``[m, b]``.
    sent : ModelVectors, optional
        The models, where they are kept: ``[m, d]`` and ``[m, b]``.
    beside : dict of str to Tensor
        What replies hold beside the model, ``[m, n]`` each.
    """

    def __init__(
        self, layout: ParameterLayout, *, has_vector: bool = False, keeps_models: bool = False
    ) -> None:
        self.layout = layout
        self.updates = torch.empty(0, layout.num_params, dtype=layout.dtype)
        self.buffer_updates = torch.empty(0, layout.num_buffers, dtype=layout.dtype)
        self.sent = ModelVectors(self.updates, self.buffer_updates) if keeps_models else None
        self._vector = {VECTOR_KEY: self.updates} if has_vector else {}
        self.expect({})

    def expect(self, lengths: Mapping[str, int]) -> None:
        """Require further arrays beside the model, float64, of these lengths, in the next round."""
        further = {name: torch.empty(0, n, dtype=torch.float64) for name, n in lengths.items()}
        self.beside = self._vector | further
        self._specs = [
            ArraySpec.of(name, rows.new_empty(rows.shape[1]).numpy())
            for name, rows in self.beside.items()
        ]

    def instruct(self, config: ConfigRecord, server_round: int) -> None:
        """Tell members in a round's config what they need to know beside the model."""

    def completed(self, updates: RoundUpdates) -> RoundUpdates:
        """Return a round's updates with what the workspace knows of them; here, as they are."""
        return updates

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` clients."""
        layout = self.layout
        if rows > self.updates.shape[0]:
            self.updates = empty_rows(rows, layout.num_params, layout.dtype)
        if rows > self.buffer_updates.shape[0]:
            self.buffer_updates = torch.empty(rows, layout.num_buffers, dtype=layout.dtype)
        if self.sent is not None and rows > len(self.sent.params):
            params = empty_rows(rows, layout.num_params, layout.dtype)
            self.sent = ModelVectors(params, torch.empty_like(self.buffer_updates))
        for name, matrix in self.beside.items():
            if rows > len(matrix):
                self.beside[name] = matrix.new_empty(rows, matrix.shape[1])

    def unpack(
        self,
        content: RecordDict,
        node: ClientNode,  # noqa: ARG002 (of masked replies)
        row: int,
        received: ModelVectors,
        arrive: Arrive | None,
    ) -> UnpackedUpdate:
        """Check what a node sent, and write what it changes of the model into a row.

        Raises
        ------
        ReplyError
            If they are not the model's, not finite, or one beside them is missing.
        """
        beside = list(self._views_beside(content))
        update = self.updates[row]  # [d]
        unpacked = self.layout.unpack_update(
            arrays_of(content), received, update, self.buffer_updates[row]
        )
        if self.sent is not None:
            model = self.layout.to_vectors(arrays_of(content))
            self.sent.params[row] = model.params
            self.sent.buffers[row] = model.buffers
        for rows, values in zip(self.beside.values(), beside, strict=True):
            rows[row] = torch.from_numpy(np.array(values))
        if arrive is None:
            return unpacked
        return unpacked._replace(squared_norm=arrive(update, unpacked.squared_norm))

    def _views_beside(self, content: RecordDict) -> Iterator[NDArray[np.generic]]:
        record = content.get(VECTOR_RECORD)
        for spec in self._specs:
            if not isinstance(record, ArrayRecord) or spec.name not in record:
                raise ReplyError(f"no array {spec.name!r}, which the local method sends")
            view = spec.view(record[spec.name])
            require_believable(spec.name, view)
            yield view

    def unfit(self, accepted: Mapping[int, AcceptedReply]) -> dict[int, str]:
        """Return, by row, why replies are refused that were accepted on their own."""
        rows = sorted(accepted)
        reasons = refuse_advances([accepted[row].advances for row in rows])
        return {rows[position]: reason for position, reason in reasons.items()}

    def compact(self, rows: Sequence[int]) -> None:
        """Move these rows, in ascending order, to the front."""
        for row, source in enumerate(rows):
            if row != source:
                self.updates[row] = self.updates[source]
                self.buffer_updates[row] = self.buffer_updates[source]
                if self.sent is not None:
                    self.sent.params[row] = self.sent.params[source]
                    self.sent.buffers[row] = self.sent.buffers[source]
                for matrix in self.beside.values():
                    matrix[row] = matrix[source]

    def round_updates(
        self,
        server_round: int,
        accepted: Sequence[AcceptedReply],
        received: ModelVectors,
        device: torch.device,
        seed: int = 0,
    ) -> RoundUpdates:
        """Return a round's accepted replies as tensors on a device.

        Changes of buffers are bounded here, in place.

        Parameters
        ----------
        server_round : int
            The round t.
        accepted : sequence of AcceptedReply
            The m replies.
        received : ModelVectors
            The model that the clients were sent.
        device : torch.device
            Where the round is weighed.
        seed : int
            The run's, for rules that draw.
        """
        m = len(accepted)
        bound_by_spread(self.buffer_updates[:m])
        sent = None
        if self.sent is not None:
            sent = ModelVectors(self.sent.params[:m], self.sent.buffers[:m])
        updates = RoundUpdates(
            server_round=server_round,
            client_ids=tuple(reply.node.client_id for reply in accepted),
            num_examples=torch.tensor([r.num_examples for r in accepted], dtype=torch.float64),
            model=ModelVectors(
                received.params.to(device), received.buffers.to(device), received.counters
            ),
            client_updates=self.updates[:m].to(device),
            squared_norms=torch.tensor([r.squared_norm for r in accepted], dtype=torch.float64),
            buffer_updates=self.buffer_updates[:m].to(device),
            counters=[reply.counters for reply in accepted],
            names=self.layout,
            seed=seed,
            sent=sent,
        )
        return self.completed(updates)


def empty_rows(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Return room for a matrix, in memory or in a file that is mapped into it."""
    count = rows * columns
    if count * dtype.itemsize <= SHARE_OF_MEMORY * psutil.virtual_memory().available:
        return torch.empty(rows, columns, dtype=dtype)
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "updates")
        return torch.from_file(path, shared=True, size=count, dtype=dtype).view(rows, columns)


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
        self.status: Status = _STATUS.get(error.code, "away")
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
            self._refuse(question.node, f"unreadable reply: {error!r}")
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

    def refuse_absent(self, reason: str, status: Status) -> None:
        """Note who was asked in this round and is silent; who was asked earlier may still be."""
        for node_id, question in self._asked.items():
            if question.server_round == self._round and node_id not in self._answered:
                self._refuse(question.node, reason, status)

    def _refuse(self, node: ClientNode, reason: str, status: Status = "refused") -> None:
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
