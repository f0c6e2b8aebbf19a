"""Serialised arrays as Flower sends them, without the copies that Flower makes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedif_flower.errors import ReplyError
from fedif_flower.messages.instructions import VECTOR_RECORD

NUMPY_SERIALIZATION = "numpy.ndarray"


@dataclass(frozen=True)
class ArraySpec:
    """Name, shape and dtype that an array must have, and the bytes it then begins with."""

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
        """Return a read-only view of a serialised array, if it is one of this kind.

        Floating-point numbers of another width are converted.

        Raises
        ------
        ReplyError
            Naming the array and what is wrong with it.
        """
        start, data = len(self.header), array.data
        expected = start + self.size * self.dtype.itemsize
        if (
            array.stype == NUMPY_SERIALIZATION
            and len(data) == expected
            and data.startswith(self.header)
        ):
            return np.frombuffer(data, dtype=self.dtype, offset=start).reshape(self.shape)
        try:
            view = view_array(array)
        except ReplyError as error:
            raise ReplyError(f"array {self.name!r}: {error}") from error
        if self.is_floating and view.dtype.kind == "f" and view.dtype.itemsize <= 8:
            with np.errstate(over="ignore"):  # what does not fit is Inf, and refused as such
                view = view.astype(self.dtype)
        if view.dtype != self.dtype:
            raise ReplyError(f"array {self.name!r} has dtype {view.dtype}, not {self.dtype}")
        if view.shape != self.shape:
            raise ReplyError(f"array {self.name!r} has shape {view.shape}, not {self.shape}")
        return view


def arrays_of(content: RecordDict) -> ArrayRecord:
    """Return a reply's arrays of the model, beside which a local method's may stand.

    Raises
    ------
    ReplyError
        If there are none, or more.
    """
    # Not ``content.array_records``: that leaves a cycle of references, and with it the arrays,
    # until the garbage collector comes by.
    found = [r for k, r in content.items() if isinstance(r, ArrayRecord) and k != VECTOR_RECORD]
    if len(found) != 1:
        raise ReplyError(f"expected one ArrayRecord, got {len(found)}")
    return found[0]


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
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = read_header(stream)
    except ValueError as error:
        raise ReplyError(f"not a NumPy array: {error}") from error
    if dtype.hasobject:
        raise ReplyError("dtype object is not allowed")
    offset = stream.tell()
    if len(array.data) - offset != math.prod(shape) * dtype.itemsize:
        raise ReplyError("length of the data does not fit its header")
    flat = np.frombuffer(array.data, dtype=dtype, offset=offset)
    return flat.reshape(shape, order="F" if fortran_order else "C")


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
    """Return the bytes before an array's own in NumPy's format."""
    header = BytesIO()
    npy.write_array_header_1_0(
        header, npy.header_data_from_array_1_0(np.asarray(values, order="C"))
    )
    return header.getvalue()
