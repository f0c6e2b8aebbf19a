"""The model that a federation trains: as clients receive it, and as the vectors of the maths."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from flwr.app import ArrayRecord
from torch import Tensor

from fedif_flower.aggregators.server_momentum import ServerMomentum
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.round import ModelVectors

T = TypeVar("T")
logger = logging.getLogger(__name__)


class GlobalModel:
    """A record and its vectors, and the last model from which a round succeeded.

    Parameters
    ----------
    trainable_keys : sequence of str, optional
        See :class:`~fedif_flower.messages.layout.ParameterLayout`.
    tied_keys : mapping of str to str, optional
        Second names of arrays (tied weights), and their first names.
    server_momentum : float
        How the model moves on from round to round; see
        :class:`~fedif_flower.aggregators.server_momentum.ServerMomentum`.
    """

    def __init__(
        self,
        trainable_keys: Sequence[str] | None = None,
        tied_keys: Mapping[str, str] | None = None,
        server_momentum: float = 0.0,
    ) -> None:
        self.momentum = ServerMomentum(server_momentum)
        self._trainable_keys = trainable_keys
        self._tied_keys = tied_keys
        self._layout: ParameterLayout | None = None
        self._now: tuple[ArrayRecord, ModelVectors] | None = None
        self._proven: ArrayRecord | None = None
        self._taken_back: ArrayRecord | None = None

    @property
    def layout(self) -> ParameterLayout:
        """Where the arrays of the record lie in the vectors; known from the first model on."""
        if self._layout is None:
            raise RuntimeError("the layout is known from the first model on")
        return self._layout

    @property
    def record(self) -> ArrayRecord:
        """The model as clients receive it."""
        return self._current[0]

    @property
    def vectors(self) -> ModelVectors:
        """The model as vectors, on the CPU."""
        return self._current[1]

    def vectors_of(self, record: ArrayRecord) -> ModelVectors:
        """Return the vectors of a record of this layout."""
        return self.vectors if record is self.record else self.layout.to_vectors(record)

    @property
    def named_buffers(self) -> dict[str, Tensor]:
        """The arrays that are not trained, by name."""
        return self.layout.named_buffers(self.vectors)

    @property
    def is_proven(self) -> bool:
        """Whether there is no other model to go back to."""
        return self._proven is None or self._proven is self.record

    def receive(self, arrays: ArrayRecord) -> ModelVectors:
        """Make a record the global model and return its vectors.

        The model that is global already is not unpacked again; one that was taken back stays so.

        Raises
        ------
        ValueError, ReplyError
            If the record is none that can be averaged, or not of the first one's layout.
        """
        arrays = self.current(arrays)
        if self._layout is None:
            self._layout = ParameterLayout.from_arrays(
                arrays, self._trainable_keys, self._tied_keys
            )
        if self._now is None or arrays is not self._now[0]:
            self._now = arrays, self._layout.to_vectors(arrays)
        return self._now[1]

    def current(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return ``arrays``, or the global model if they are one that was taken back."""
        return self.record if arrays is self._taken_back else arrays

    def advance(self, vectors: ModelVectors) -> ArrayRecord:
        """Move on to a round's result; the model before it has proved to work."""
        params = self.momentum.advance(self.vectors.params, vectors.params)
        vectors = replace(vectors, params=params)
        self._proven = self.record
        record = self.layout.to_arrays(vectors)
        self._now = record, vectors
        return record

    def take_back(self) -> ArrayRecord | None:
        """Return to the last model from which a round succeeded; ``None`` if that is this one."""
        if self.is_proven or self._proven is None:
            return None
        logger.error("the model goes back to the last one that worked")
        self.momentum.take_back()
        self._taken_back = self.record
        self._now = self._proven, self.layout.to_vectors(self._proven)
        return self._proven

    def examined(self, examine: Callable[[ArrayRecord], T]) -> T:
        """Return what ``examine(record)`` returns, and take the model back if it is why that fails.

        Raises
        ------
        Exception
            What ``examine`` raises, if it raises on the last model that worked as well, or if
            there is none.
        """
        try:
            return examine(self.record)
        except Exception as error:
            if self.is_proven or self._proven is None:
                raise
            found = examine(self._proven)
            logger.error("the global model cannot be evaluated: %r", error)
            self.take_back()
            return found

    @property
    def _current(self) -> tuple[ArrayRecord, ModelVectors]:
        if self._now is None:
            raise RuntimeError("there is no global model before the first round")
        return self._now
