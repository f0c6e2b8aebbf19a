"""Clients for tests: one that takes a step, and every hostile reply that we know of."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedif_flower.messages.arrays import pack_array

Spoil = Callable[[dict[str, Array], dict[str, object]], RecordDict | None]


def step_reply(message: Message, step: float, num_examples: int = 10) -> Message:
    """Add ``step`` to every floating-point array."""
    return reply_of(message, *honest_parts(message, step, num_examples))


def reply_of(message: Message, arrays: dict[str, Array], metrics: dict[str, object]) -> Message:
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


def honest_parts(message: Message, step: float, num_examples: int = 10):
    arrays = {}
    for name, array in message.content.array_records["arrays"].items():
        values = array.numpy()
        floating = np.issubdtype(values.dtype, np.floating)
        arrays[name] = pack_array(values + values.dtype.type(step if floating else 1))
    return arrays, {"num-examples": num_examples, "train-loss": 1.0}


def spoiled_reply(message: Message, kind: str) -> Message:
    """An honest reply, spoiled as :data:`HOSTILE` says."""
    arrays, metrics = honest_parts(message, 1.0)
    content = HOSTILE[kind][0](arrays, metrics)
    if content is None:
        return reply_of(message, arrays, metrics)
    return Message(content, reply_to=message)


def _first(arrays: dict[str, Array]) -> str:
    return next(iter(arrays))


def _with(change: Callable[[np.ndarray], np.ndarray], name: str = "") -> Spoil:
    def spoil(arrays, metrics):
        chosen = name or _first(arrays)
        arrays[chosen] = pack_array(change(arrays[chosen].numpy()))

    return spoil


def _fill(value: float, name: str = "") -> Spoil:
    def change(values: np.ndarray) -> np.ndarray:
        values.flat[-1] = value
        return values

    return _with(change, name)


def _raw(change: Callable[[bytes], bytes], stype: str = "numpy.ndarray") -> Spoil:
    def spoil(arrays, metrics):
        name = _first(arrays)
        known = arrays[name]
        arrays[name] = Array(known.dtype, known.shape, stype=stype, data=change(known.data))

    return spoil


def _objects(data: bytes) -> bytes:
    """An array that NumPy would have to unpickle."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _extra(name: str) -> Spoil:
    return lambda arrays, metrics: arrays.update({name: pack_array(np.ones(1))})


def _metric(value: object) -> Spoil:
    def spoil(arrays, metrics):
        metrics["num-examples"] = value

    return spoil


def _records(build: Callable[[ArrayRecord, MetricRecord], dict[str, object]]) -> Spoil:
    return lambda arrays, metrics: RecordDict(build(ArrayRecord(arrays), MetricRecord(metrics)))


# What a client may do to its reply, and what that is refused for.
HOSTILE: dict[str, tuple[Spoil, str]] = {
    "nan": (_fill(float("nan")), "array '0.weight' has NaN or Inf"),
    "inf": (_fill(float("inf")), "has NaN or Inf"),
    "minus inf in a buffer": (_fill(float("-inf"), "1.running_mean"), "_mean' has NaN or Inf"),
    "no variance": (_fill(-1.0, "1.running_var"), "'1.running_var' has variances from -1 to"),
    "absurd variance": (_fill(1e12, "1.running_var"), "to 1e+12, where the model sent had at most"),
    "lower counter": (_fill(-1, "1.num_batches_tracked"), "decreased; allowed: unchanged, or"),
    "absurdly large": (_fill(3e38), "has 3e+38, beyond 1e+15"),
    "other shape": (_with(lambda v: np.zeros((*v.shape, 2), v.dtype)), "has shape (3, 2, 2), not"),
    "transposed": (_with(lambda v: v.T), "has shape (2, 3), not (3, 2)"),
    "empty array": (_with(lambda v: v[:0]), "has shape (0, 2)"),
    "float64 beyond float32": (_with(lambda v: np.full(v.shape, 1e300)), "has NaN or Inf"),
    "int64": (_with(lambda v: v.astype(np.int64)), "has dtype int64, not float32"),
    "complex": (_with(lambda v: v.astype(np.complex64)), "has dtype complex64"),
    "strings": (_with(lambda v: v.astype(str)), "has dtype <U32"),
    "objects": (_raw(_objects), "dtype object is not allowed"),
    "garbage bytes": (_raw(lambda data: b"garbage"), "'0.weight': not a NumPy array"),
    "no bytes": (_raw(lambda data: b""), "not a NumPy array"),
    "pickled bytes": (_raw(lambda data: pickle.dumps([1.0, 2.0])), "not a NumPy array"),
    "truncated bytes": (_raw(lambda data: data[:-3]), "length of the data does not fit"),
    "more bytes": (_raw(lambda data: data + b"more"), "length of the data does not fit"),
    "unknown serialisation": (_raw(bytes, "pickle"), "serialisation 'pickle' is not"),
    "missing array": (lambda a, m: a.pop(_first(a)) and None, "arrays missing: 0.weight"),
    "extra array": (_extra("more"), "unexpected arrays: more"),
    "renamed array": (lambda a, m: a.update(renamed=a.pop(_first(a))), "arrays missing: 0.weight"),
    "no arrays": (lambda a, m: a.clear(), "arrays missing: 0.bias, 0.weight, 1.bias"),
    "nan examples": (_metric(float("nan")), "'num-examples' is nan, not a finite number"),
    "inf examples": (_metric(float("inf")), "'num-examples' is inf, not a finite number"),
    "negative examples": (_metric(-5), "'num-examples' is -5; allowed: more than 0"),
    "zero examples": (_metric(0), "'num-examples' is 0; allowed: more than 0"),
    "absurd examples": (_metric(10**15), "is 1e+15; allowed: more than 0, at most 1e+07"),
    "list of examples": (_metric([10, 10]), "is [10, 10], not a finite number"),
    "no examples": (lambda a, m: m.pop("num-examples") and None, "'num-examples' is missing"),
    "no metrics": (_records(lambda a, m: {"arrays": a}), "'num-examples' is missing"),
    "no array record": (_records(lambda a, m: {"metrics": m}), "expected one ArrayRecord, got 0"),
    "two array records": (
        _records(lambda a, m: {"arrays": a, "again": a, "metrics": m}),
        "expected one ArrayRecord, got 2",
    ),
    "half a surrogate pair": (_extra("\ud800"), "unexpected arrays: ?"),
    "name of 100 kB": (_extra("x" * 100_000), "unexpected arrays: xxx"),
    "escape sequence": (_extra("\x1b[2J\n"), "unexpected arrays: ?[2J?"),
    "empty reply": (_records(lambda a, m: {}), "'num-examples' is missing"),
}


class Clients:
    """A ClientApp: partition p adds p + 1, unless told to do something else."""

    def __init__(
        self, special: dict[int, Callable[[Message, Context], Message]] | None = None
    ) -> None:
        self.special = special or {}

    def __call__(self, message: Message, context: Context) -> Message:
        partition_id = int(context.node_config["partition-id"])
        if message.metadata.message_type == "query":
            node = ConfigRecord({"partition-id": partition_id, "attack": ""})
            return Message(RecordDict({"node": node}), reply_to=message)
        if message.metadata.message_type == "evaluate":
            metrics = MetricRecord({"num-examples": 10, "accuracy": float(partition_id)})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        if partition_id in self.special:
            return self.special[partition_id](message, context)
        return self.train(message, partition_id)

    def train(self, message: Message, partition_id: int) -> Message:
        """Return what a client sends that was not told otherwise."""
        return step_reply(message, partition_id + 1.0, 10 * (partition_id + 1))


def alike(client: Callable[[Message, Context], Message], number: int = 3) -> Clients:
    """Return clients that all do the same."""
    return Clients(dict.fromkeys(range(number), client))


def one_more(message: Message, context: Context) -> Message:
    """A client that adds 1."""
    return step_reply(message, 1.0)


def round_of(message: Message) -> int:
    return message.content.config_records["config"]["server-round"]
