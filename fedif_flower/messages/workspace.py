"""Rows for the updates of a round's clients, which replies are unpacked into."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
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

# The updates of a round may take this share of the memory that is free.
SHARE_OF_MEMORY = 0.25

Arrive = Callable[[Tensor, float], float]


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
        self.sent: ModelVectors | None = None
        if keeps_models:
            self.sent = ModelVectors(self.updates, self.buffer_updates)
        self._vector: dict[str, Tensor] = {}
        if has_vector:
            self._vector = {VECTOR_KEY: self.updates}
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
