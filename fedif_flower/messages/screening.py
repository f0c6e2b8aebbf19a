"""Screening: each reply of a client is checked alone, and none can stop the server."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedif_flower.errors import ReplyError
from fedif_flower.messages.integers import refuse_advances
from fedif_flower.messages.layout import ModelVectors, ParameterLayout
from fedif_flower.strategies.nodes import ClientNode

logger = logging.getLogger(__name__)

Metrics = dict[str, int | float | list[int] | list[float]]
MetricsAggregation = Callable[[list[RecordDict], str], MetricRecord]

# Beyond this a model is absurd, and squares of its 10^8 values would leave float32.
MAX_MAGNITUDE = 1e15
NO_REPLY = "no reply before the deadline"


@dataclass(frozen=True)
class AcceptedReply:
    """A reply whose update lies in a row of the workspace."""

    node: ClientNode
    num_examples: int
    metrics: Metrics
    arrays: ArrayRecord | None
    squared_norm: float
    counters: Mapping[str, Tensor]
    advances: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RefusedReply:
    """A client without a usable reply: it ``failed``, or its reply was refused for ``reason``."""

    node: ClientNode
    reason: str
    failed: bool = False


@dataclass(frozen=True)
class Screening:
    """The accepted and refused replies of a round, and the seconds of screening without waiting."""

    accepted: list[AcceptedReply] = field(default_factory=list)
    refused: list[RefusedReply] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def num_failed(self) -> int:
        """Clients that failed or did not answer (as opposed to: answered nonsense)."""
        return sum(reply.failed for reply in self.refused)


class Workspace:
    """Rows for the clients' updates, kept from round to round to spare the page faults."""

    def __init__(self, layout: ParameterLayout) -> None:
        self.layout = layout
        self.updates = torch.empty(0, layout.num_params, dtype=layout.dtype)  # [m, d]
        self.buffer_updates = torch.empty(0, layout.num_buffers, dtype=layout.dtype)  # [m, b]

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` clients."""
        if rows > self.updates.shape[0]:
            layout = self.layout
            self.updates = torch.empty(rows, layout.num_params, dtype=layout.dtype)
            self.buffer_updates = torch.empty(rows, layout.num_buffers, dtype=layout.dtype)

    def compact(self, rows: Sequence[int]) -> None:
        """Move these rows, in ascending order, to the front."""
        for row, source in enumerate(rows):
            if row != source:
                self.updates[row] = self.updates[source]
                self.buffer_updates[row] = self.buffer_updates[source]


def screen_replies(
    replies: Iterable[Message],
    asked: Mapping[int, ClientNode],
    received: ModelVectors,
    workspace: Workspace,
    *,
    weighted_by_key: str,
    max_num_examples: int,
    keep_arrays: bool = False,
) -> Screening:
    """Check replies as they come, each on its own; unpack the good ones by partition id.

    Parameters
    ----------
    replies : iterable of Message
        Whatever came back, in any order; it may yet be on its way.
    asked : mapping of int to ClientNode
        The round's clients by node id.
    received : ModelVectors
        The model they were sent.
    workspace : Workspace
        In the end row k holds the update of accepted reply number k.
    weighted_by_key : str
        Name of the metric that holds the number of examples.
    max_num_examples : int
        More than this is absurd.
    keep_arrays : bool
        Whether accepted replies keep what they hold besides the update.

    Returns
    -------
    Screening
        Every asked client is in exactly one of its lists; senders not asked are refused too.
    """
    workspace.reserve(len(asked))
    rows = {node.node_id: row for row, node in enumerate(sorted(asked.values()))}
    accepted: dict[int, AcceptedReply] = {}
    refused: list[RefusedReply] = []
    answered: set[int] = set()
    seconds = 0.0

    def take(reply: Message) -> None:
        node = asked.get(reply.metadata.src_node_id)
        if node is None:
            stranger = ClientNode(-1, reply.metadata.src_node_id)
            refused.append(RefusedReply(stranger, "reply from a node that was not asked"))
            return
        if node.node_id in answered:
            refused.append(RefusedReply(node, "second reply from the same node"))
            return
        answered.add(node.node_id)
        if reply.has_error():
            reason = f"client error {reply.error.code}: {reply.error.reason}"
            refused.append(RefusedReply(node, reason[:500], failed=True))
            return
        row = rows[node.node_id]
        try:
            accepted[row] = _screen(
                reply, node, received, workspace, row, weighted_by_key, max_num_examples
            )
        except ReplyError as error:
            refused.append(RefusedReply(node, str(error)))
        except Exception as error:  # nothing a client sends may stop the server
            refused.append(RefusedReply(node, f"unreadable reply: {error!r}"[:500]))
        if row in accepted and not keep_arrays:
            accepted[row] = replace(accepted[row], arrays=None)

    for reply in replies:
        started = time.perf_counter()
        take(reply)
        del reply  # Its arrays are in the workspace: while the next is awaited, they need no room.
        seconds += time.perf_counter() - started
    rows_accepted = sorted(accepted)
    unfit = refuse_advances([accepted[row].advances for row in rows_accepted])
    for position, reason in unfit.items():
        refused.append(RefusedReply(accepted.pop(rows_accepted[position]).node, reason))
    silent = asked.keys() - answered
    refused.extend(RefusedReply(asked[i], NO_REPLY, failed=True) for i in silent)
    workspace.compact(sorted(accepted))
    refused.sort(key=lambda reply: reply.node)
    return Screening([accepted[row] for row in sorted(accepted)], refused, seconds)


def _screen(
    reply: Message,
    node: ClientNode,
    received: ModelVectors,
    workspace: Workspace,
    row: int,
    weighted_by_key: str,
    max_num_examples: int,
) -> AcceptedReply:
    content = reply.content
    # Not ``content.array_records``: that leaves a cycle of references, and with it the arrays,
    # until the garbage collector comes by.
    of_arrays = [record for record in content.values() if isinstance(record, ArrayRecord)]
    of_metrics = [record for record in content.values() if isinstance(record, MetricRecord)]
    if len(of_arrays) != 1 or len(of_metrics) != 1 or len(content) != 2:
        raise ReplyError(
            f"expected one ArrayRecord and one MetricRecord, got {len(of_arrays)} and "
            f"{len(of_metrics)} among {len(content)} records"
        )
    arrays, metrics = of_arrays[0], of_metrics[0]
    num_examples = _screen_num_examples(metrics, weighted_by_key, max_num_examples)
    workspace.layout.check(arrays)
    workspace.layout.check_variances(arrays)
    unpacked = workspace.layout.unpack_update(
        arrays,
        received,
        workspace.updates[row],
        workspace.buffer_updates[row],
        max_magnitude=MAX_MAGNITUDE,
    )
    return AcceptedReply(
        node=node,
        num_examples=num_examples,
        metrics=_credible(metrics) | {weighted_by_key: num_examples},
        arrays=arrays,
        squared_norm=unpacked.squared_norm,
        counters=unpacked.counters,
        advances=unpacked.advances,
    )


def _screen_num_examples(metrics: MetricRecord, key: str, maximum: int) -> int:
    if key not in metrics:
        raise ReplyError(f"metric {key!r} is missing")
    value = metrics[key]
    if isinstance(value, list) or not math.isfinite(value) or value != int(value):
        raise ReplyError(f"metric {key!r} is {str(value)[:40]}, not a whole number")
    if not 1 <= value <= maximum:
        raise ReplyError(f"metric {key!r} is {value:g}; allowed: 1 to {maximum}")
    return int(value)


def _credible(metrics: MetricRecord) -> Metrics:
    """Return a reply's metrics without NaN and absurdly large values, which spoil sums."""
    return {
        name: value
        for name, value in metrics.items()
        if all(abs(v) <= MAX_MAGNITUDE for v in (value if isinstance(value, list) else [value]))
    }


def screen_evaluations(
    replies: Sequence[Message], weighted_by_key: str, max_num_examples: int
) -> list[Metrics]:
    """Return the metrics of well-formed evaluation replies."""
    accepted = []
    for reply in replies:
        try:
            if reply.has_error():
                raise ReplyError(f"client error {reply.error.code}: {reply.error.reason}"[:500])
            (metrics,) = reply.content.metric_records.values()
            num_examples = _screen_num_examples(metrics, weighted_by_key, max_num_examples)
            accepted.append(_credible(metrics) | {weighted_by_key: num_examples})
        except Exception as error:  # nothing a client sends may stop the server
            logger.warning("evaluation of node %d refused: %s", reply.metadata.src_node_id, error)
    return accepted


def aggregate_metrics(
    reported: Sequence[Metrics], aggregate: MetricsAggregation, weighted_by_key: str
) -> MetricRecord | None:
    """Return what Flower's ``aggregate`` makes of the metrics that all clients report."""
    try:
        return aggregate(common_metrics(reported), weighted_by_key) if reported else None
    except Exception as error:  # metrics are the clients' words: they must not stop a run
        logger.warning("the clients' metrics could not be aggregated: %r", error)
        return None


def common_metrics(reported: Sequence[Metrics]) -> list[RecordDict]:
    """Return records with one ``"metrics"`` each that holds only what all clients report.

    Flower's aggregation of metrics fails if one client's keys or list lengths differ.
    """
    shared = [
        name
        for name, value in (reported[0] if reported else {}).items()
        if all(name in r and _length(r[name]) == _length(value) for r in reported)
    ]
    return [
        RecordDict({"metrics": MetricRecord({name: metrics[name] for name in shared})})
        for metrics in reported
    ]


def _length(value: float | list[int] | list[float]) -> int:
    return len(value) if isinstance(value, list) else -1
