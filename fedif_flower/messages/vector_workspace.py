"""Replies that hold arrays beside the model's: SCAFFOLD's vector, or what clients report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from fedif_flower.messages.screening import MAX_MAGNITUDE, Arrive, Workspace
from fedif_flower.round import ModelVectors


def vector_record(vector: Tensor) -> ArrayRecord:
    """Return a vector ``[d]`` as it travels beside the model."""
    return tensor_arrays({VECTOR_KEY: vector})


class VectorWorkspace(Workspace):
    """Takes in arrays ``[n]`` of each reply beside its update, screened like it.

    Parameters
    ----------
    layout : ParameterLayout
        The model's.
    has_vector : bool
        Whether a vector ``[d]`` is among them.
    """

    def __init__(self, layout: ParameterLayout, *, has_vector: bool = True) -> None:
        super().__init__(layout)
        vector = torch.empty(0, layout.num_params, dtype=layout.dtype)  # [m, d]
        self._vector = {VECTOR_KEY: vector} if has_vector else {}
        self.expect({})

    @property
    def vectors(self) -> Tensor:
        """The vectors ``[m, d]``."""
        return self.beside[VECTOR_KEY]

    def expect(self, lengths: Mapping[str, int]) -> None:
        """Require further arrays, float64, of these lengths, from the next round on."""
        further = {name: torch.empty(0, n, dtype=torch.float64) for name, n in lengths.items()}
        self.beside = self._vector | further  # By name, [m, n] each.
        self._specs = [
            ArraySpec.of(name, rows.new_empty(rows.shape[1]).numpy())
            for name, rows in self.beside.items()
        ]

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` clients."""
        super().reserve(rows)
        for name, own in self.beside.items():
            if rows > len(own):
                self.beside[name] = own.new_empty(rows, own.shape[1])

    def unpack(
        self,
        content: RecordDict,
        node: ClientNode,
        row: int,
        received: ModelVectors,
        arrive: Arrive | None,
    ) -> UnpackedUpdate:
        """Check the model's arrays and those beside them, and write all into a row.

        Raises
        ------
        ReplyError
            If one is missing, of another shape or type, or not finite.
        """
        record = content.get(VECTOR_RECORD)
        beside: list[Tensor] = []
        for spec in self._specs:
            if not isinstance(record, ArrayRecord) or spec.name not in record:
                raise ReplyError(f"no array {spec.name!r}, which the local method sends")
            view = spec.view(record[spec.name])
            largest = float(np.abs(view).max(initial=0))
            if not largest <= MAX_MAGNITUDE:  # NaN too.
                raise ReplyError(f"array {spec.name!r} has {largest:g}, beyond {MAX_MAGNITUDE:g}")
            beside.append(torch.from_numpy(np.array(view)))
        if isinstance(record, ArrayRecord) and len(record) > len(beside):
            raise ReplyError(f"{len(record)} arrays beside the model's, not {len(beside)}")
        unpacked = super().unpack(content, node, row, received, arrive)
        for rows, values in zip(self.beside.values(), beside, strict=True):
            rows[row] = values
        return unpacked

    def compact(self, rows: Sequence[int]) -> None:
        """Move these rows, in ascending order, to the front."""
        super().compact(rows)
        for row, source in enumerate(rows):
            for own in self.beside.values() if row != source else ():
                own[row] = own[source]
