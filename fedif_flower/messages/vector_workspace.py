"""Replies that hold a vector beside the model's arrays, as SCAFFOLD's do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedif_flower.errors import ReplyError
from fedif_flower.messages.arrays import ArraySpec
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import VECTOR_KEY, VECTOR_RECORD
from fedif_flower.messages.layout import ParameterLayout, UnpackedUpdate
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.messages.reply_arrays import model_arrays_of
from fedif_flower.messages.screening import MAX_MAGNITUDE, Arrive, Workspace
from fedif_flower.round import ModelVectors


def vector_record(vector: Tensor) -> ArrayRecord:
    """Return a vector ``[d]`` as it travels beside the model."""
    return tensor_arrays({VECTOR_KEY: vector})


class VectorWorkspace(Workspace):
    """Takes in a vector ``[d]`` of each reply beside its update, screened like it."""

    def __init__(self, layout: ParameterLayout) -> None:
        super().__init__(layout)
        self.vectors = torch.empty(0, layout.num_params, dtype=layout.dtype)  # [m, d]
        self._spec = ArraySpec.of(VECTOR_KEY, self.vectors.new_empty(layout.num_params).numpy())

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` clients."""
        super().reserve(rows)
        if rows > len(self.vectors):
            self.vectors = self.vectors.new_empty(rows, self.layout.num_params)

    def arrays(self, content: RecordDict) -> ArrayRecord:
        """Return the model's arrays: those that are not the vector's."""
        return model_arrays_of(content)

    def unpack(
        self,
        content: RecordDict,
        node: ClientNode,
        row: int,
        received: ModelVectors,
        arrive: Arrive | None,
    ) -> UnpackedUpdate:
        """Check the model's arrays and the vector, and write both into a row.

        Raises
        ------
        ReplyError
            If one is missing, of another shape or type, or not finite.
        """
        record = content.get(VECTOR_RECORD)
        if not isinstance(record, ArrayRecord) or list(record) != [VECTOR_KEY]:
            raise ReplyError(f"no array {VECTOR_KEY!r}, which the local method sends")
        vector = self._spec.view(record[VECTOR_KEY])
        largest = float(np.abs(vector).max(initial=0))
        if not largest <= MAX_MAGNITUDE:  # NaN too.
            raise ReplyError(f"array {VECTOR_KEY!r} has {largest:g}, beyond {MAX_MAGNITUDE:g}")
        unpacked = super().unpack(content, node, row, received, arrive)
        self.vectors[row] = torch.from_numpy(np.array(vector))
        return unpacked

    def compact(self, rows: Sequence[int]) -> None:
        """Move these rows, in ascending order, to the front."""
        super().compact(rows)
        for row, source in enumerate(rows):
            if row != source:
                self.vectors[row] = self.vectors[source]
