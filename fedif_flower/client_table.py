"""Numbers of each client in arrays, so that a million clients are copied in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_FIRST_ROWS = 64


class ClientTable:
    """A table with a row of numbers for each client, in the order in which they were first written.

    Parameters
    ----------
    **columns : float
        The names of the columns, each with the value of a client that has no row.

    Examples
    --------
    >>> table = ClientTable(errors=0)
    >>> table.write([7, 9], errors=[1, 2])
    >>> table.read([9, 8], "errors").tolist()
    [2.0, 0.0]
    """

    def __init__(self, **columns: float) -> None:
        self._absent = columns
        self._rows: dict[int, int] = {}
        self._ids = np.empty(_FIRST_ROWS, dtype=np.uint64)
        self._columns = {name: np.empty(_FIRST_ROWS) for name in columns}

    def __len__(self) -> int:
        """Return how many clients have a row."""
        return len(self._rows)

    def __contains__(self, client_id: int) -> bool:
        """Tell whether a client has a row."""
        return client_id in self._rows

    @property
    def client_ids(self) -> list[int]:
        """The ids of the clients that have a row, in the order of the rows."""
        return list(self._rows)

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column ``[n]`` in the order of :attr:`client_ids`; do not write to it."""
        return self._columns[name][: len(self)]

    def read(self, client_ids: Iterable[int], name: str) -> NDArray[np.float64]:
        """Return the values of these clients in a column, ``[m]``."""
        # A client without a row gets the index -1. The last row of the array is read for it, and
        # replaced by the default.
        row_of = self._rows
        rows = np.array([row_of.get(client_id, -1) for client_id in client_ids], dtype=np.int64)
        return np.where(rows < 0, self._absent[name], self._columns[name][rows])

    def where(self, chosen: NDArray[np.bool_]) -> set[int]:
        """Return the ids of the clients whose rows a mask ``[n]`` chooses."""
        return set(self._ids[: len(self)][chosen].tolist())

    def write(self, client_ids: Sequence[int], **columns: object) -> None:
        """Write values ``[m]`` of these clients into columns; clients without a row get one.

        If a client is listed twice, its last values count.
        """
        distinct = dict.fromkeys(client_ids)
        self._add([client_id for client_id in distinct if client_id not in self._rows])
        rows = [self._rows[client_id] for client_id in client_ids]
        for name, values in columns.items():
            self._columns[name][rows] = np.asarray(values, dtype=np.float64)

    def _add(self, client_ids: Sequence[int]) -> None:
        """Add a row with the columns' defaults for each of these clients."""
        start = len(self)
        end = start + len(client_ids)
        self._make_room(end)
        self._ids[start:end] = np.array(client_ids, dtype=np.uint64)
        for name, absent in self._absent.items():
            self._columns[name][start:end] = absent
        self._rows.update(zip(client_ids, range(start, end), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy as tensors: client ids as uint64, and each column as float64."""
        state = {"client_ids": torch.from_numpy(self._ids[: len(self)].copy())}
        for name in self._columns:
            state[name] = torch.from_numpy(self.column(name).copy())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._ids = state["client_ids"].numpy().copy()
        self._columns = {name: state[name].numpy().copy() for name in self._absent}
        self._rows = {client_id: row for row, client_id in enumerate(self._ids.tolist())}
        self._make_room(_FIRST_ROWS)

    def _make_room(self, needed: int) -> None:
        """Make the arrays long enough for ``needed`` rows; they at least double in length."""
        if needed > len(self._ids):
            size = max(2 * len(self._ids), needed)
            self._ids = np.resize(self._ids, size)
            for name, column in self._columns.items():
                self._columns[name] = np.resize(column, size)
