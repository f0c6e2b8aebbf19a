"""Conversion between Flower's ``ArrayRecord`` and the vectors that the server computes with.

A model is three things here: the vector of its trainable parameters, the vector of its other
floating-point arrays (frozen parameters, batch-norm statistics), and its integer arrays
(``num_batches_tracked``). Arrays that cannot be averaged (complex numbers, masks of -inf) stay as
they were sent. Nothing outside this file knows where an array lies in the vectors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.errors import ReplyError
from fedif_flower.messages.arrays import (
    ArraySpec,
    check_variance,
    is_statistic,
    is_variance,
    measure_advance,
    pack_array,
    view_array,
)
from fedif_flower.messages.names import Names, names_in_model, reply_mismatch
from fedif_flower.round import ModelVectors

# Largest magnitude of a value in a reply. No sane model has larger ones, and a sum of 10^8 squares
# of larger ones would overflow float32.
MAX_MAGNITUDE = 1e15
# Elements of a block: one of a model and one of an update fit into the processor's cache together.
_BLOCK = 1 << 16


class UnpackedUpdate(NamedTuple):
    """What is kept of a client's reply beside its rows ``[d]`` and ``[b]``.

    Attributes
    ----------
    squared_norm : float
        Squared Euclidean norm of the update over trainable parameters.
    counters : dict of str to Tensor
        All integer arrays of the client's model, by their names in the record.
    advances : dict of str to int
        How far each integer array advanced, for those that changed, by their names in the model.
    """

    squared_norm: float
    counters: dict[str, Tensor]
    advances: dict[str, int]


@dataclass(frozen=True)
class ParameterLayout:
    """Where each array of a record lies in the server's vectors.

    Parameters
    ----------
    trainable : tuple of ArraySpec
        The arrays that make up ``params`` [d], in this order.
    buffers : tuple of ArraySpec
        All other floating-point arrays, which make up ``buffers`` [b].
    counters : tuple of ArraySpec
        Integer and boolean arrays.
    order : tuple of str
        The names in the record's own order.
    constants : mapping of str to ndarray
        Arrays that nobody may change: complex ones, and buffers with infinite values.
    tied : mapping of str to str
        First names, by second names, of arrays that the record has twice.
    called : mapping of str to str
        Names in the server's own model, by names in the record, where the two differ.
    """

    trainable: tuple[ArraySpec, ...]
    buffers: tuple[ArraySpec, ...]
    counters: tuple[ArraySpec, ...]
    order: tuple[str, ...]
    constants: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    called: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_arrays(
        cls,
        arrays: ArrayRecord,
        trainable_keys: Sequence[str] | None = None,
        tied_keys: Mapping[str, str] | None = None,
        names: Names | None = None,
    ) -> ParameterLayout:
        """Return the layout of a record.

        Parameters
        ----------
        arrays : ArrayRecord
            The global model as it is sent to clients.
        trainable_keys : sequence of str, optional
            The names of the trainable parameters, in the order of the vector. ``None``: every
            floating-point array with finite values counts as trainable, except batch norm's running
            statistics.
        tied_keys : mapping of str to str, optional
            First names of tied arrays by their second names. A second name that is not in the
            record is left out.
        names : mapping of str to str, or callable, optional
            From a name in the record to the name in ``trainable_keys`` and ``tied_keys``.

        Raises
        ------
        ValueError
            If a trainable key is missing from the record or is no array of finite floating-point
            numbers, if tied arrays differ, or if an array has NaN, or no numbers in this machine's
            byte order.
        """
        values = {name: view_array(array) for name, array in arrays.items()}
        _require_numbers(values)
        called = names_in_model(names, values)
        sent_as = {model_name: name for name, model_name in called.items()}
        tied = _tied_as_sent(tied_keys or {}, sent_as)
        _require_same(tied, values)
        kinds = _sort_arrays(values, tied)
        if trainable_keys is None:
            trainable = [name for name in kinds.floating if not is_statistic(called[name])]
        else:
            trainable = [sent_as.get(key, key) for key in trainable_keys]
            _require_trainable(trainable, kinds.specs, kinds.floating)
        trained = set(trainable)
        buffers = [spec for name, spec in kinds.floating.items() if name not in trained]
        return cls(
            trainable=tuple(kinds.floating[name] for name in trainable),
            buffers=tuple(buffers),
            counters=tuple(kinds.counters),
            order=tuple(values),
            constants=kinds.constants,
            tied=tied,
            called={name: called[name] for name in called if called[name] != name},
        )

    @property
    def parameter_names(self) -> list[str]:
        """The trainable arrays' names in the server's own model, in the order of the vector."""
        return [self.own_name(spec.name) for spec in self.trainable]

    def own_name(self, name: str) -> str:
        """Return an array's name in the server's own model, by its name in the record."""
        return self.called.get(name, name)

    @cached_property
    def num_params(self) -> int:
        """Length d of the vector of trainable parameters."""
        return sum(spec.size for spec in self.trainable)

    @cached_property
    def num_buffers(self) -> int:
        """Length b of the vector of floating-point buffers."""
        return sum(spec.size for spec in self.buffers)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The vectors' dtype: float64 if an array of the model has it, float32 otherwise."""
        for spec in (*self.trainable, *self.buffers):
            if spec.dtype == np.float64:
                return torch.float64
        return torch.float32

    @cached_property
    def narrows(self) -> bool:
        """Whether an array is narrower than the vectors: a record then rounds their values."""
        width = self.dtype.itemsize
        return any(spec.dtype.itemsize < width for spec in (*self.trainable, *self.buffers))

    def views(self, arrays: Mapping[str, Array]) -> dict[str, NDArray[np.generic]]:
        """Return views of a record's arrays by name, without constants and second names.

        Raises
        ------
        ReplyError
            Unless the record has exactly this layout's names, shapes and dtypes, constants are as
            they were sent, and tied arrays are equal.
        """
        missing = set(self.order) - set(arrays)
        extra = set(arrays) - set(self.order)
        if missing or extra:
            raise ReplyError(reply_mismatch(missing, extra))
        specs = (*self.trainable, *self.buffers, *self.counters)
        views = {spec.name: spec.view(arrays[spec.name]) for spec in specs}
        for name, constant in self.constants.items():
            if not _same(view_array(arrays[name]), constant):
                raise ReplyError(
                    f"array {name!r} was changed; allowed: exactly the values sent, since complex "
                    "and infinite values are not averaged"
                )
        for name, first in self.tied.items():
            if not _same(view_array(arrays[name]), view_array(arrays[first])):
                raise ReplyError(f"array {name!r} differs from {first!r}, to which it is tied")
        return views

    def unpack_update(
        self,
        arrays: Mapping[str, Array],
        received: ModelVectors,
        update: Tensor,
        buffer_update: Tensor,
    ) -> UnpackedUpdate:
        """Write a reply's model minus the model that the client received into two vectors.

        This takes one pass over the reply: it is read, subtracted, measured and written block by
        block.

        Parameters
        ----------
        arrays : mapping of str to Array
            The model that a client sent back.
        received : ModelVectors
            The model that the client had received, on the CPU.
        update, buffer_update : Tensor
            ``[d]`` and ``[b]``, on the CPU: the differences are written into these.

        Returns
        -------
        UnpackedUpdate
            The update's squared norm, and the client's integer arrays.

        Raises
        ------
        ReplyError
            If the arrays do not have this layout, a value is NaN or infinite or above
            ``MAX_MAGNITUDE``, a running variance is impossible, or an integer array changed as no
            counter does (see :mod:`fedif_flower.messages.arrays`).
        """
        views = self.views(arrays)
        self._check_variances(views, received.buffers)
        squared_norm = _subtract(self.trainable, views, received.params, update, MAX_MAGNITUDE)
        _subtract(self.buffers, views, received.buffers, buffer_update, MAX_MAGNITUDE)
        # Unchanged arrays are shared with the received model, since an index may have millions of
        # values.
        counters = dict(received.counters)
        advances = {}
        for spec in self.counters:
            returned = views[spec.name]
            advance = measure_advance(spec.name, received.counters[spec.name].numpy(), returned)
            if advance:
                counters[spec.name] = torch.from_numpy(np.array(returned))
                advances[self.own_name(spec.name)] = advance
        return UnpackedUpdate(squared_norm, counters, advances)

    def _check_variances(
        self, views: Mapping[str, NDArray[np.generic]], received_buffers: Tensor
    ) -> None:
        """Raise ReplyError if a reply's running variances are impossible."""
        sent = self.split_buffers(received_buffers)
        for spec in (*self.trainable, *self.buffers):
            model_name = self.own_name(spec.name)
            if not is_variance(model_name) or not spec.size:
                continue
            largest = math.inf  # A variance that is trained as a parameter has no upper bound.
            if model_name in sent:
                largest = float(sent[model_name].max())
            check_variance(spec.name, views[spec.name], largest)

    def to_vectors(self, arrays: Mapping[str, Array]) -> ModelVectors:
        """Copy a record of this layout into new vectors on the CPU.

        Raises
        ------
        ReplyError
            If the record does not have this layout, or a value is NaN or infinite.
        """
        views = self.views(arrays)
        params = torch.zeros(self.num_params, dtype=self.dtype)
        buffers = torch.zeros(self.num_buffers, dtype=self.dtype)
        # Subtracting a vector of zeros, in place, copies and checks the values in one pass.
        _subtract(self.trainable, views, params, params, math.inf)
        _subtract(self.buffers, views, buffers, buffers, math.inf)
        counters = {}
        for spec in self.counters:
            counters[spec.name] = torch.from_numpy(np.array(views[spec.name]))
        return ModelVectors(params, buffers, counters)

    def to_arrays(self, vectors: ModelVectors) -> ArrayRecord:
        """Copy vectors into a new record with the layout's own dtypes and order."""
        packed = _pack(self.trainable, vectors.params)
        packed |= _pack(self.buffers, vectors.buffers)
        for spec in self.counters:
            packed[spec.name] = pack_array(vectors.counters[spec.name].cpu().numpy())
        for name, values in self.constants.items():
            packed[name] = pack_array(values)
        return ArrayRecord({name: packed[self.tied.get(name, name)] for name in self.order})

    def named_buffers(self, vectors: ModelVectors) -> dict[str, Tensor]:
        """Return all arrays that are not trained, by their names in the server's own model.

        Floating-point buffers are views of ``vectors.buffers``; counters and constants come too.
        """
        named: dict[str, Tensor] = {}
        for name, values in self.constants.items():
            named[self.own_name(name)] = torch.from_numpy(values)
        for name, counter in vectors.counters.items():
            named[self.own_name(name)] = counter
        return {**named, **self.split_buffers(vectors.buffers)}

    def split_buffers(self, buffers: Tensor) -> dict[str, Tensor]:
        """Return views ``[..., *shape]`` of ``buffers`` [..., b], by the server model's names."""
        leading = buffers.shape[:-1]
        views = {}
        for spec, place in _places(self.buffers):
            # The shape as a tuple: it is empty for a buffer that is a single number.
            shape = (*leading, *spec.shape)
            views[self.own_name(spec.name)] = buffers[..., place].view(shape)
        return views


class _Kinds(NamedTuple):
    """A record's arrays without second names of tied ones: ``specs`` has all, the others a kind."""

    specs: dict[str, ArraySpec]
    constants: dict[str, NDArray[np.generic]]
    floating: dict[str, ArraySpec]
    counters: list[ArraySpec]


def _sort_arrays(values: Mapping[str, NDArray[np.generic]], tied: Collection[str]) -> _Kinds:
    """Return a record's arrays by kind; a tied array counts once, under its first name."""
    kinds = _Kinds({}, {}, {}, [])
    for name, array in values.items():
        if name in tied:
            continue
        spec = ArraySpec.of(name, array)
        kinds.specs[name] = spec
        if _is_constant(array):
            kinds.constants[name] = array.copy()
        elif spec.is_floating:
            kinds.floating[name] = spec
        else:
            kinds.counters.append(spec)
    return kinds


def _tied_as_sent(tied_keys: Mapping[str, str], sent_as: Mapping[str, str]) -> dict[str, str]:
    """Return first names of tied arrays by second names, both as they are in the record."""
    tied = {}
    for second, first in tied_keys.items():
        if second in sent_as:
            tied[sent_as[second]] = sent_as.get(first, first)
    return tied


def _require_same(tied: Mapping[str, str], values: Mapping[str, NDArray[np.generic]]) -> None:
    """Raise ValueError if arrays that are tied in the model differ in the record."""
    for name, first in tied.items():
        if first not in values or not _same(values[name], values[first]):
            raise ValueError(f"{name!r} and {first!r} are one array in the model, but not here")


def _require_trainable(
    trainable: Sequence[str], specs: Mapping[str, ArraySpec], floating: Collection[str]
) -> None:
    """Raise ValueError if a trainable array is not sent, or is not finite floating point."""
    unsent = [name for name in trainable if name not in specs]
    if unsent:
        raise ValueError(
            f"trainable parameters {unsent} are not in initial_arrays, which have "
            f"{list(specs)}: freeze what members keep, by requires_grad_(False)"
        )
    unfit = [name for name in trainable if name not in floating]
    if unfit:
        raise ValueError(
            f"trainable parameters {unfit} are not finite floating-point arrays of the global "
            f"model, whose arrays are {list(specs)}"
        )


def _places(specs: Iterable[ArraySpec]) -> Iterator[tuple[ArraySpec, slice]]:
    """Yield each array with its place in the vector."""
    start = 0
    for spec in specs:
        yield spec, slice(start, start + spec.size)
        start += spec.size


def _pack(specs: Iterable[ArraySpec], vector: Tensor) -> dict[str, Array]:
    """Copy the pieces of a vector into arrays by name."""
    values = vector.detach().cpu().numpy()
    packed = {}
    for spec, place in _places(specs):
        array = values[place].reshape(spec.shape)
        with np.errstate(over="ignore"):  # Values that do not fit become Inf, as in ArraySpec.view.
            packed[spec.name] = pack_array(array.astype(spec.dtype, copy=False))
    return packed


def _subtract(
    specs: Iterable[ArraySpec],
    views: Mapping[str, NDArray[np.generic]],
    reference: Tensor,
    target: Tensor,
    max_magnitude: float,
) -> float:
    """Write the views minus ``reference`` into ``target``; return the squared norm of the result.

    Raises
    ------
    ReplyError
        If a value of the views is NaN, infinite or beyond ``max_magnitude``.
    """
    squared_norm = 0.0
    with np.errstate(all="ignore"):  # Values that overflow are refused below.
        for spec, place in _places(specs):
            values = views[spec.name].reshape(-1)
            difference = target.numpy()[place]
            squared_norm += _write_difference(values, reference.numpy()[place], difference)
    # NaN, Inf and values that are too large show in the norm, so the values themselves are searched
    # only where the norm is odd.
    if not (math.isfinite(squared_norm) and squared_norm <= max_magnitude**2):
        for spec in specs:
            require_believable(spec.name, views[spec.name], max_magnitude)
    return squared_norm


def _write_difference(
    values: NDArray[np.generic], reference: NDArray[np.generic], difference: NDArray[np.generic]
) -> float:
    """Write ``values`` minus ``reference`` into ``difference``, all ``[k]``; return its square sum.

    The work goes block by block: a block is still in the processor's cache when it is squared.
    """
    squared_norm = 0.0
    for first in range(0, len(values), _BLOCK):
        block = slice(first, first + _BLOCK)
        np.subtract(values[block], reference[block], out=difference[block])
        squared_norm += float(np.dot(difference[block], difference[block]))
    return squared_norm


def require_believable(
    name: str, values: NDArray[np.generic], max_magnitude: float = MAX_MAGNITUDE
) -> None:
    """Raise ReplyError if a value is NaN, infinite or beyond ``max_magnitude``."""
    if not np.isfinite(values).all():
        raise ReplyError(f"array {name!r} has NaN or Inf")
    largest = float(np.abs(values).max(initial=0))
    if largest > max_magnitude:
        raise ReplyError(f"array {name!r} has {largest:g}, beyond {max_magnitude:g}")


def _require_numbers(values: Mapping[str, NDArray[np.generic]]) -> None:
    """Raise ValueError if an array of the global model holds NaN, or no numbers of native order."""
    for name, array in values.items():
        if array.dtype.kind not in "fiubc" or not array.dtype.isnative:
            allowed = "numbers in this machine's byte order"
            raise ValueError(f"array {name!r} has dtype {array.dtype.str}; allowed: {allowed}")
        if array.dtype.kind in "fc" and np.isnan(array).any():
            raise ValueError(f"array {name!r} of the global model has NaN")


def _is_constant(values: NDArray[np.generic]) -> bool:
    """Return whether an array has to stay as it is, because a mean of it has no meaning."""
    if values.dtype.kind == "c":
        return True
    return values.dtype.kind == "f" and not np.isfinite(values).all()


def _same(first: NDArray[np.generic], second: NDArray[np.generic]) -> bool:
    return first.dtype == second.dtype and np.array_equal(first, second)
