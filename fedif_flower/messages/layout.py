"""Flower's ``ArrayRecord`` <-> the vectors the server computes with.

A model is three things here: the vector of its trainable parameters, the vector of its other
floating-point arrays (frozen parameters, batch-norm statistics), and its integer arrays
(``num_batches_tracked``). What cannot be averaged (complex numbers, masks of -inf) stays as it
was sent. Nothing outside this file knows how they lie in a record.
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

# Beyond this a model is absurd, and squares of its 10^8 values would leave float32.
MAX_MAGNITUDE = 1e15
# A block of a model and of an update stay in the cache between two passes over them.
_BLOCK = 1 << 16


class UnpackedUpdate(NamedTuple):
    """Squared norm of a client's update over trainable parameters; its integer arrays.

    ``advances`` has how far each integer array advanced that changed.
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
        Second names of arrays that the record has twice, and their first names.
    called : mapping of str to str
        What a model of the server's own calls arrays, where it has another name for them.
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
        """Read the layout off a record.

        Parameters
        ----------
        arrays : ArrayRecord
            The global model as it is sent to clients.
        trainable_keys : sequence of str, optional
            The names of the trainable parameters, in the order of the vector. ``None``: every
            floating-point array with finite values is taken to be trainable, but batch norm's
            running statistics.
        tied_keys : mapping of str to str, optional
            Second names of arrays, and their first names; those not in the record are left out.
        names : mapping of str to str, or callable, optional
            What ``trainable_keys`` and ``tied_keys`` call an array, by its name in the record.

        Raises
        ------
        ValueError
            If a trainable key is missing from the record or is not floating point, tied arrays
            differ, or an array can neither be averaged nor stay as it is.
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
        """What a model of the server's own calls the trainable arrays, in their order."""
        return [self.own_name(spec.name) for spec in self.trainable]

    def own_name(self, name: str) -> str:
        """Return what a model of the server's own calls an array."""
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
        """float64 where the model has it, float32 otherwise."""
        for spec in (*self.trainable, *self.buffers):
            if spec.dtype == np.float64:
                return torch.float64
        return torch.float32

    @cached_property
    def narrows(self) -> bool:
        """Whether an array is narrower than the vectors: a record then holds rounded values."""
        width = self.dtype.itemsize
        return any(spec.dtype.itemsize < width for spec in (*self.trainable, *self.buffers))

    def views(self, arrays: Mapping[str, Array]) -> dict[str, NDArray[np.generic]]:
        """Return views of a record's arrays by name.

        Raises
        ------
        ReplyError
            Unless it has exactly this layout's names, shapes and dtypes, and what nobody may
            change is as it was sent.
        """
        missing = set(self.order) - set(arrays)
        extra = set(arrays) - set(self.order)
        if missing or extra:
            raise ReplyError(reply_mismatch(missing, extra))
        specs = (*self.trainable, *self.buffers, *self.counters)
        views = {spec.name: spec.view(arrays[spec.name]) for spec in specs}
        for name, constant in self.constants.items():
            if not _same(view_array(arrays[name]), constant):
                why = ""
                if constant.dtype.kind == "c":
                    why = " (complex arrays are not averaged)"
                raise ReplyError(f"array {name!r} is not as it was sent{why}")
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
        """Write a reply's record, less the model it came from, into two vectors.

        One pass over the reply: it is read, subtracted, measured and written block by block.

        Parameters
        ----------
        arrays : mapping of str to Array
            What a client sent back.
        received : ModelVectors
            The model it had received, on the CPU.
        update, buffer_update : Tensor
            ``[d]`` and ``[b]``, on the CPU: where the differences go.

        Raises
        ------
        ReplyError
            If the arrays are not the layout's, a value is NaN, infinite or beyond
            ``MAX_MAGNITUDE``, a variance is none, or an integer array changed as no counter does
            (see :mod:`fedif_flower.messages.arrays`).
        """
        views = self.views(arrays)
        self._check_variances(views, received.buffers)
        squared_norm = _subtract(self.trainable, views, received.params, update, MAX_MAGNITUDE)
        _subtract(self.buffers, views, received.buffers, buffer_update, MAX_MAGNITUDE)
        # What did not change is the received model's own: an index of millions is not copied.
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
        """Raise ReplyError if running variances of a reply cannot be variances."""
        sent = self.split_buffers(received_buffers)
        for spec in (*self.trainable, *self.buffers):
            model_name = self.own_name(spec.name)
            if not is_variance(model_name) or not spec.size:
                continue
            largest = math.inf  # One that is trained may grow without limit.
            if model_name in sent:
                largest = float(sent[model_name].max())
            check_variance(spec.name, views[spec.name], largest)

    def to_vectors(self, arrays: Mapping[str, Array]) -> ModelVectors:
        """Copy a record of this layout into new vectors on the CPU."""
        views = self.views(arrays)
        params = torch.zeros(self.num_params, dtype=self.dtype)
        buffers = torch.zeros(self.num_buffers, dtype=self.dtype)
        # Less a vector of zeros, which becomes the copy.
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
        """Return floating-point buffers as named views of ``vectors.buffers``, and the others.

        The names are those of the server's own model.
        """
        named: dict[str, Tensor] = {}
        for name, values in self.constants.items():
            named[self.own_name(name)] = torch.from_numpy(values)
        for name, counter in vectors.counters.items():
            named[self.own_name(name)] = counter
        return {**named, **self.split_buffers(vectors.buffers)}

    def split_buffers(self, buffers: Tensor) -> dict[str, Tensor]:
        """Return ``buffers`` [..., b] as views ``[..., *shape]``, by the server's own names."""
        leading = buffers.shape[:-1]
        views = {}
        for spec, place in _places(self.buffers):
            views[self.own_name(spec.name)] = buffers[..., place].view(*leading, *spec.shape)
        return views


class _Kinds(NamedTuple):
    """A record's arrays by name, each but for tied ones: all of them, and by what they are."""

    specs: dict[str, ArraySpec]
    constants: dict[str, NDArray[np.generic]]
    floating: dict[str, ArraySpec]
    counters: list[ArraySpec]


def _sort_arrays(values: Mapping[str, NDArray[np.generic]], tied: Collection[str]) -> _Kinds:
    """Return a record's arrays by kind; a tied array is one array, and is there once."""
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
    """Return second names and first names of tied arrays, as they are in the record."""
    tied = {}
    for second, first in tied_keys.items():
        if second in sent_as:
            tied[sent_as[second]] = sent_as.get(first, first)
    return tied


def _require_same(tied: Mapping[str, str], values: Mapping[str, NDArray[np.generic]]) -> None:
    """Raise ValueError if arrays that are one in the model are not in the record."""
    for name, first in tied.items():
        if first not in values or not _same(values[name], values[first]):
            raise ValueError(f"{name!r} and {first!r} are one array in the model, but not here")


def _require_trainable(
    trainable: Sequence[str], specs: Mapping[str, ArraySpec], floating: Collection[str]
) -> None:
    """Raise ValueError if an array that is to be trained is not sent, or cannot be trained."""
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
    """Yield where each array lies in a vector."""
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
        with np.errstate(over="ignore"):  # What does not fit is Inf, as ArraySpec.view has it.
            packed[spec.name] = pack_array(array.astype(spec.dtype, copy=False))
    return packed


def _subtract(
    specs: Iterable[ArraySpec],
    views: Mapping[str, NDArray[np.generic]],
    reference: Tensor,
    target: Tensor,
    max_magnitude: float,
) -> float:
    """Write the views less ``reference`` into ``target``; return its squared norm.

    Raises
    ------
    ReplyError
        If a value is NaN, infinite or too large.
    """
    squared_norm = 0.0
    with np.errstate(all="ignore"):  # What overflows is refused below.
        for spec, place in _places(specs):
            values = views[spec.name].reshape(-1)
            difference = target.numpy()[place]
            squared_norm += _write_difference(values, reference.numpy()[place], difference)
    # NaN and Inf show in the norm, and so does any value that is too large.
    if not (math.isfinite(squared_norm) and squared_norm <= max_magnitude**2):
        for spec in specs:
            require_believable(spec.name, views[spec.name], max_magnitude)
    return squared_norm


def _write_difference(
    values: NDArray[np.generic], reference: NDArray[np.generic], difference: NDArray[np.generic]
) -> float:
    """Write values ``[k]`` less others into a third array, block by block; return its square sum.

    A block is still in the processor's cache when it is measured.
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
    """Raise ReplyError if a value is NaN, infinite or too large."""
    if not np.isfinite(values).all():
        raise ReplyError(f"array {name!r} has NaN or Inf")
    largest = float(np.abs(values).max(initial=0))
    if largest > max_magnitude:
        raise ReplyError(f"array {name!r} has {largest:g}, beyond {max_magnitude:g}")


def _require_numbers(values: Mapping[str, NDArray[np.generic]]) -> None:
    """Raise ValueError if an array of the global model holds NaN, or no numbers."""
    for name, array in values.items():
        if array.dtype.kind not in "fiubc" or not array.dtype.isnative:
            allowed = "numbers in this machine's byte order"
            raise ValueError(f"array {name!r} has dtype {array.dtype.str}; allowed: {allowed}")
        if array.dtype.kind in "fc" and np.isnan(array).any():
            raise ValueError(f"array {name!r} of the global model has NaN")


def _is_constant(values: NDArray[np.generic]) -> bool:
    """Tell whether an array can only stay as it is: no mean of it has a meaning."""
    if values.dtype.kind == "c":
        return True
    return values.dtype.kind == "f" and not np.isfinite(values).all()


def _same(first: NDArray[np.generic], second: NDArray[np.generic]) -> bool:
    return first.dtype == second.dtype and np.array_equal(first, second)
