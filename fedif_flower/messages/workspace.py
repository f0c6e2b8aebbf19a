"""Memory for the updates of a round's clients: replies are unpacked into its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import torch
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.aggregators.spread import bound_by_spread
from fedif_flower.errors import ReplyError
from fedif_flower.messages.arrays import ArraySpec, arrays_of, refuse_advances
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import VECTOR_KEY, VECTOR_RECORD
from fedif_flower.messages.layout import ParameterLayout, UnpackedUpdate, require_believable
from fedif_flower.messages.metrics import ClientRecords
from fedif_flower.round import ModelVectors, RoundUpdates

# The updates of a round may take this share of the free memory; larger ones lie in a file.
SHARE_OF_MEMORY = 0.25

# Takes a client's update [d] as it arrives, which it may change in place, and its squared norm;
# returns the squared norm of the changed update.
Arrive = Callable[[Tensor, float], float]


@dataclass(frozen=True)
class AcceptedReply:
    """A reply that was accepted; its update lies in a row of the workspace.

    Attributes
    ----------
    node : ClientNode
        The client.
    reported : ClientRecords
        What the reply holds beside arrays, screened.
    squared_norm : float
        Squared Euclidean norm of the update over trainable parameters.
    counters : mapping of str to Tensor
        The integer arrays of the client's model, by name.
    advances : mapping of str to int
        How far each integer array advanced, for those that changed.
    """

    node: ClientNode
    reported: ClientRecords
    squared_norm: float
    counters: Mapping[str, Tensor]
    advances: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_examples(self) -> float:
        """The number of examples for which the client counts."""
        return self.reported.num_examples


@dataclass(frozen=True)
class Question:
    """What a member was asked, in this round or in an earlier one.

    Attributes
    ----------
    node : ClientNode
        The member.
    received : ModelVectors
        The model that the member was sent. Its reply is screened against this model.
    at : float
        When the member was asked, by :func:`time.perf_counter`. It cannot have trained for longer
        than since then.
    server_round : int
        The round in which the member was asked.
    factor : float
        The factor in [0, 1] by which a late reply's update is multiplied.
    buffers : Tensor, optional
        ``[b]``: the buffers from which a late reply's buffer update is measured. Default: those in
        ``received``. Buffers describe the data that a layer has seen, and are no steps: where the
        global model has reached a late reply's buffers already, the reply must not move it further.
    """

    node: ClientNode
    received: ModelVectors
    at: float = -math.inf
    server_round: int = 0
    factor: float = 1.0
    buffers: Tensor | None = None


class Workspace:
    """Matrices with one row for each client's update, used again in every round.

    New memory in every round would cost page faults. Updates (and models) that would take more than
    a quarter of the free memory lie in a file that is mapped into memory. The system keeps as much
    of the file in memory as fits. The file has no name, and vanishes with the process.

    Parameters
    ----------
    layout : ParameterLayout
        The layout of the model's arrays.
    has_vector : bool
        Whether each reply holds a vector ``[d]`` beside its model, as with SCAFFOLD.
    keeps_models : bool
        Whether the clients' models are kept beside the updates. They take as much memory again.

    Attributes
    ----------
    updates, buffer_updates : Tensor
        ``[m, d]`` and ``[m, b]``: at least m rows, where m is the number of clients.
    sent : ModelVectors, optional
        The clients' models, if they are kept: ``[m, d]`` and ``[m, b]``.
    beside : dict of str to Tensor
        The arrays that replies hold beside the model, ``[m, n]`` each, by name.
    """

    def __init__(
        self, layout: ParameterLayout, *, has_vector: bool = False, keeps_models: bool = False
    ) -> None:
        self.layout = layout
        self.updates = torch.empty(0, layout.num_params, dtype=layout.dtype)
        self.buffer_updates = torch.empty(0, layout.num_buffers, dtype=layout.dtype)
        self.sent: ModelVectors | None = None
        if keeps_models:
            self.sent = ModelVectors(self.updates, self.buffer_updates)
        self._vector: dict[str, Tensor] = {}
        if has_vector:
            self._vector = {VECTOR_KEY: self.updates}
        self.expect({})

    def expect(self, lengths: Mapping[str, int]) -> None:
        """Require of the next round's replies further arrays beside the model, all float64.

        Parameters
        ----------
        lengths : mapping of str to int
            Length n of each array, by name.
        """
        further = {name: torch.empty(0, n, dtype=torch.float64) for name, n in lengths.items()}
        self.beside = self._vector | further
        self._specs = [
            ArraySpec.of(name, rows.new_empty(rows.shape[1]).numpy())
            for name, rows in self.beside.items()
        ]

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` clients; rows that are there already may lose their values."""
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
        """Check a reply's arrays, and write the update into a row.

        Parameters
        ----------
        content : RecordDict
            The reply.
        node : ClientNode
            The client. A subclass for masked replies needs it.
        row : int
            The row that the update is written into.
        received : ModelVectors
            The model that the client received.
        arrive : callable, optional
            Changes the update in its row and returns its new squared norm.

        Raises
        ------
        ReplyError
            If the arrays do not have the model's layout or are not finite, or if an array beside
            the model is missing.
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
        """Yield a reply's arrays beside the model, checked, in the order of ``beside``."""
        record = content.get(VECTOR_RECORD)
        for spec in self._specs:
            if not isinstance(record, ArrayRecord) or spec.name not in record:
                raise ReplyError(f"no array {spec.name!r}, which the local method sends")
            view = spec.view(record[spec.name])
            require_believable(spec.name, view)
            yield view

    def unfit(self, accepted: Mapping[int, AcceptedReply]) -> dict[int, str]:
        """Return reasons, by row, to refuse replies that are odd only beside the others."""
        rows = sorted(accepted)
        reasons = refuse_advances([accepted[row].advances for row in rows])
        return {rows[position]: reason for position, reason in reasons.items()}

    def compact(self, rows: Sequence[int]) -> None:
        """Move these rows to the front; ``rows`` is ascending, so none is overwritten too early."""
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
        seed: int,
    ) -> RoundUpdates:
        """Return a round's accepted replies as tensors on a device.

        Outliers among the buffer updates are replaced here, in place (see
        :func:`~fedif_flower.aggregators.spread.bound_by_spread`).

        Parameters
        ----------
        server_round : int
            The round t.
        accepted : sequence of AcceptedReply
            The m replies; reply k's update is in row k.
        received : ModelVectors
            The model that the clients were sent.
        device : torch.device
            The device on which the round is weighed.
        seed : int
            The strategy's seed, for rules that draw at random.
        """
        m = len(accepted)
        bound_by_spread(self.buffer_updates[:m])
        sent = None
        if self.sent is not None:
            sent = ModelVectors(self.sent.params[:m], self.sent.buffers[:m])
        num_examples = [reply.num_examples for reply in accepted]
        squared_norms = [reply.squared_norm for reply in accepted]
        return RoundUpdates(
            server_round=server_round,
            client_ids=tuple(reply.node.client_id for reply in accepted),
            num_examples=torch.tensor(num_examples, dtype=torch.float64),
            model=ModelVectors(
                received.params.to(device), received.buffers.to(device), received.counters
            ),
            client_updates=self.updates[:m].to(device),
            squared_norms=torch.tensor(squared_norms, dtype=torch.float64),
            buffer_updates=self.buffer_updates[:m].to(device),
            counters=[reply.counters for reply in accepted],
            names=self.layout,
            seed=seed,
            sent=sent,
        )


def empty_rows(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised matrix, in memory or, if large, in a file mapped into memory."""
    count = rows * columns
    if count * dtype.itemsize <= SHARE_OF_MEMORY * psutil.virtual_memory().available:
        return torch.empty(rows, columns, dtype=dtype)
    with TemporaryDirectory() as folder:  # The mapping outlives the file's name.
        path = str(Path(folder) / "updates")
        return torch.from_file(path, shared=True, size=count, dtype=dtype).view(rows, columns)
