"""Serialised arrays as Flower sends them, read and written without the copies that Flower makes.

The checks of arrays that are no parameters are here too: counters only advance, other integer
arrays (indices) stay as they were, and running variances stay possible variances.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Literal

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedif_flower.errors import ReplyError
from fedif_flower.messages.instructions import VECTOR_RECORD
from fedif_flower.messages.records import records_of

# Batch norm's count of training steps. Arrays of this name are counters even if most clients leave
# them as they were.
COUNTER_NAMES = frozenset({"num_batches_tracked"})
# Most that a counter may advance in one round. No client takes more steps, and an int64 holds nine
# billion such rounds.
MAX_ADVANCE = 10**9
# Most times the median by which a counter may advance. Clients' data differ in size, and so do the
# numbers of their steps.
MAX_TIMES_MEDIAN = 100
# Most times the largest variance sent (at least 1) that a returned variance may be. Training does
# not exceed that even from fresh statistics (1) on raw pixels (about 10^4).
MAX_VARIANCE_GROWTH = 1e6
NUMPY_SERIALIZATION = "numpy.ndarray"


@dataclass(frozen=True)
class ArraySpec:
    """The name, shape and dtype that an array must have, and its header in NumPy's format."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    header: bytes = field(repr=False)

    @classmethod
    def of(cls, name: str, values: NDArray[np.generic]) -> ArraySpec:
        """Return the specification of an array like ``values``."""
        return cls(name, tuple(values.shape), values.dtype, _header(values))

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_floating(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return np.issubdtype(self.dtype, np.floating)

    def view(self, array: Array) -> NDArray[np.generic]:
        """Return the values of a serialised array: a read-only view, or a converted copy.

        Floating-point numbers of another width are converted to this dtype.

        Raises
        ------
        ReplyError
            If the array is not of this shape and dtype. The error names it.
        """
        # An honest client's array begins with the same header bytes as the server's. Then the
        # header need not be parsed.
        if array.stype == NUMPY_SERIALIZATION and self._begins(array.data):
            flat = np.frombuffer(array.data, dtype=self.dtype, offset=len(self.header))
            return flat.reshape(self.shape)
        try:
            view = view_array(array)
        except ReplyError as error:
            raise ReplyError(f"array {self.name!r}: {error}") from error
        if self.is_floating and view.dtype.kind == "f" and view.dtype.itemsize <= 8:
            with np.errstate(over="ignore"):  # Values that do not fit become Inf: refused later.
                view = view.astype(self.dtype)
        if view.dtype != self.dtype:
            raise ReplyError(f"array {self.name!r} has dtype {view.dtype}, not {self.dtype}")
        if view.shape != self.shape:
            raise ReplyError(f"array {self.name!r} has shape {view.shape}, not {self.shape}")
        return view

    def _begins(self, data: bytes) -> bool:
        """Return whether bytes begin with this array's header and have the length it states."""
        expected = len(self.header) + self.size * self.dtype.itemsize
        return len(data) == expected and data.startswith(self.header)


def arrays_of(content: RecordDict) -> ArrayRecord:
    """Return the record of a reply's model arrays; a local method's own record is left aside.

    Raises
    ------
    ReplyError
        If the reply has no such record, or several.
    """
    records = records_of(content, ArrayRecord)
    records.pop(VECTOR_RECORD, None)
    if len(records) != 1:
        raise ReplyError(f"expected one ArrayRecord, got {len(records)}")
    (record,) = records.values()
    return record


def view_array(array: Array) -> NDArray[np.generic]:
    """Return a read-only view of a serialised array, without copying or unpickling.

    Raises
    ------
    ReplyError
        If the bytes are not one plain NumPy array of exactly the length that its header says.
    """
    if array.stype != NUMPY_SERIALIZATION:
        raise ReplyError(f"serialisation {array.stype!r} is not {NUMPY_SERIALIZATION!r}")
    stream = BytesIO(array.data)
    try:
        if npy.read_magic(stream) == (1, 0):
            shape, fortran_order, dtype = npy.read_array_header_1_0(stream)
        else:
            shape, fortran_order, dtype = npy.read_array_header_2_0(stream)
    except ValueError as error:
        raise ReplyError(f"not a NumPy array: {error}") from error
    if dtype.hasobject:
        raise ReplyError("dtype object is not allowed")
    offset = stream.tell()
    if len(array.data) - offset != math.prod(shape) * dtype.itemsize:
        raise ReplyError("length of the data does not fit its header")
    flat = np.frombuffer(array.data, dtype=dtype, offset=offset)
    order: Literal["F", "C"] = "F" if fortran_order else "C"
    return flat.reshape(shape, order=order)


def pack_array(values: NDArray[np.generic]) -> Array:
    """Serialise one array with a single copy (``Array(ndarray)`` makes two)."""
    values = np.asarray(values, order="C")
    return Array(
        dtype=str(values.dtype),
        shape=tuple(values.shape),
        stype=NUMPY_SERIALIZATION,
        data=b"".join((_header(values), values.reshape(-1).view(np.uint8).data)),
    )


def _header(values: NDArray[np.generic]) -> bytes:
    """Return the bytes that stand before an array's values in NumPy's format."""
    described = npy.header_data_from_array_1_0(np.asarray(values, order="C"))
    header = BytesIO()
    npy.write_array_header_1_0(header, described)
    return header.getvalue()


def measure_advance(name: str, received: NDArray[np.generic], returned: NDArray[np.generic]) -> int:
    """Return how far a counter advanced: the largest of its elements; 0 if the array is unchanged.

    Parameters
    ----------
    name : str
        The array's name, for the error.
    received, returned : NDArray
        The array as the server sent it and as the client returned it, of one shape.

    Raises
    ------
    ReplyError
        If an element decreased or advanced by more than ``MAX_ADVANCE``, or if the array changed
        and does not hold integers or booleans.
    """
    if np.array_equal(received, returned):
        return 0
    if received.dtype.kind not in "biu":
        raise ReplyError(
            f"array {name!r} of {received.dtype} was changed; allowed: the values sent"
        )
    if np.less(returned, received).any():
        raise ReplyError(
            f"integer array {name!r} decreased; allowed: unchanged, or counted upwards"
        )
    # Differences in uint64 are exact modulo 2^64, and none is negative here.
    advance = int((returned.astype(np.uint64) - received.astype(np.uint64)).max())
    if advance > MAX_ADVANCE:
        raise ReplyError(f"integer array {name!r} advances by {advance}, beyond {MAX_ADVANCE}")
    return advance


def refuse_advances(advances: Sequence[Mapping[str, int]]) -> dict[int, str]:
    """Return reasons to refuse replies whose integer arrays changed as no honest client's do.

    An array is a counter if more than half of the replies advance it, or if its name is in
    ``COUNTER_NAMES``. Any other array is an index, and must stay as it was. No reply may advance a
    counter by more than ``MAX_TIMES_MEDIAN`` times the (lower) median over the replies that advance
    it.

    Parameters
    ----------
    advances : sequence of mapping of str to int
        For each reply, the arrays that it changed and how far each advanced, > 0.

    Returns
    -------
    dict of int to str
        Reasons by position in ``advances``; replies that are fine are left out.
    """
    names: set[str] = set()
    for by_name in advances:
        names |= by_name.keys()
    reasons: dict[int, str] = {}
    for name in sorted(names):
        steps = sorted(by_name[name] for by_name in advances if name in by_name)
        is_counter = _last_part(name) in COUNTER_NAMES or 2 * len(steps) > len(advances)
        median = statistics.median_low(steps)
        for position, by_name in enumerate(advances):
            step = by_name.get(name, 0)
            if step and not is_counter:
                reason = f"integer array {name!r} was changed, which most replies left as it was"
            elif step > MAX_TIMES_MEDIAN * median:
                reason = f"integer array {name!r} advances by {step}; the median is {median}"
            else:
                continue
            reasons.setdefault(position, reason)  # A reply's first fault is its reason.
    return reasons


def is_statistic(name: str) -> bool:
    """Return whether an array is a running mean or variance of batch norm."""
    return _last_part(name) in ("running_mean", "running_var")


def is_variance(name: str) -> bool:
    """Return whether an array is a running variance of batch norm."""
    return _last_part(name) == "running_var"


def _last_part(name: str) -> str:
    """Return an array's name in its own module: ``running_var`` for ``norm.running_var``."""
    return name.rpartition(".")[2]


def check_variance(name: str, returned: NDArray[np.generic], sent: float) -> None:
    """Raise ReplyError if running variances are below 0 or grew more than training can do.

    The model takes their square root: a single one below 0 would make every output NaN. A variance
    of 0 is allowed, since a dead channel has it.

    Parameters
    ----------
    name : str
        The array's name, for the error.
    returned : NDArray
        The running variances that a client returned.
    sent : float
        The largest variance of the array that the server sent; infinite: no upper bound.
    """
    smallest = float(returned.min(initial=np.inf))
    largest = float(returned.max(initial=-np.inf))
    if smallest < 0 or largest > MAX_VARIANCE_GROWTH * max(1.0, sent):
        raise ReplyError(
            f"array {name!r} has variances from {smallest:g} to {largest:g}, where the model sent "
            f"had at most {sent:g}"
        )
