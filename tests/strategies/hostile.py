"""Clients for tests: one that takes a step, and every hostile reply that we know of."""

from __future__ import annotations

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


def spoiled_reply(message: Message, spoil: Spoil) -> Message:
    arrays, metrics = honest_parts(message, 1.0)
    content = spoil(arrays, metrics)
    if content is None:
        return reply_of(message, arrays, metrics)
    return Message(content, reply_to=message)


def _first(arrays: dict[str, Array]) -> str:
    return next(iter(arrays))


def _with(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    def spoil(arrays, metrics):
        name = _first(arrays)
        arrays[name] = pack_array(change(arrays[name].numpy()))

    return spoil


def _fill(value: float) -> Spoil:
    def change(values: np.ndarray) -> np.ndarray:
        values.flat[0] = value
        return values

    return _with(change)


def _raw(data: bytes | None = None, stype: str = "numpy.ndarray") -> Spoil:
    def spoil(arrays, metrics):
        name = _first(arrays)
        known = arrays[name]
        kept = known.data if data is None else data
        arrays[name] = Array(known.dtype, known.shape, stype=stype, data=kept)

    return spoil


def _extra(name: str) -> Spoil:
    return lambda arrays, metrics: arrays.update({name: pack_array(np.ones(1))})


def _metric(value: object) -> Spoil:
    def spoil(arrays, metrics):
        metrics["num-examples"] = value

    return spoil


def _records(build: Callable[[ArrayRecord, MetricRecord], dict[str, object]]) -> Spoil:
    return lambda arrays, metrics: RecordDict(build(ArrayRecord(arrays), MetricRecord(metrics)))


HOSTILE: dict[str, Spoil] = {
    "nan": _fill(float("nan")),
    "inf": _fill(float("inf")),
    "minus inf": _fill(float("-inf")),
    "absurdly large": _fill(3e38),
    "other shape": _with(lambda v: np.zeros((*v.shape, 2), v.dtype)),
    "transposed": _with(lambda v: np.zeros((*v.shape[::-1], 1), v.dtype)),
    "empty array": _with(lambda v: v[:0]),
    "float64 beyond float32": _with(lambda v: np.full(v.shape, 1e300)),
    "int64": _with(lambda v: v.astype(np.int64)),
    "complex": _with(lambda v: v.astype(np.complex64)),
    "strings": _with(lambda v: v.astype(str)),
    "garbage bytes": _raw(data=b"garbage"),
    "no bytes": _raw(data=b""),
    "pickled bytes": _raw(data=pickle.dumps([1.0, 2.0])),
    "truncated bytes": _raw(data=pack_array(np.ones(5, np.float32)).data[:-3]),
    "unknown serialisation": _raw(stype="pickle"),
    "missing array": lambda arrays, metrics: arrays.pop(_first(arrays)) and None,
    "extra array": _extra("more"),
    "renamed array": lambda arrays, metrics: arrays.update(renamed=arrays.pop(_first(arrays))),
    "no arrays": lambda arrays, metrics: arrays.clear(),
    "nan examples": _metric(float("nan")),
    "inf examples": _metric(float("inf")),
    "negative examples": _metric(-5),
    "zero examples": _metric(0),
    "absurd examples": _metric(10**15),
    "list of examples": _metric([10, 10]),
    "no examples": lambda arrays, metrics: metrics.pop("num-examples") and None,
    "no metrics": _records(lambda a, m: {"arrays": a}),
    "no array record": _records(lambda a, m: {"metrics": m}),
    "two array records": _records(lambda a, m: {"arrays": a, "again": a, "metrics": m}),
    "half a surrogate pair": _extra("\ud800"),
    "name of 100 kB": _extra("x" * 100_000),
    "escape sequence": _extra("\x1b[2J\n"),
    "empty reply": _records(lambda a, m: {}),
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
