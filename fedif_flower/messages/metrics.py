"""What clients report beside their models: its screening, and means over the clients.

No client can move a mean far, and no report can stop the server.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedif_flower.errors import ReplyError, require, with_place
from fedif_flower.messages.text import printable, reason_of
from fedif_flower.words import enumerated

logger = logging.getLogger(__name__)

_LOSSES = ("train-loss", "loss")  # Names under which members report their training loss.
TRAIN_LOSS = "train-loss"
TRAIN_SECONDS = "train-seconds"
# No metric of a training is larger; sums of larger values could overflow.
MAX_METRIC = 1e15
# Most bytes that a reply may hold beside its model. The server keeps those of all clients until the
# round ends.
MAX_RECORD_BYTES = 4 << 20
# Most notes on one reply: more would fill the logs.
MAX_NOTES = 10
MetricsAggregation = Callable[[list[RecordDict], str], MetricRecord]

# Most metrics of a client, and most values of one metric, that enter means: Flower logs the means.
MAX_METRICS = 100
MAX_VALUES = 1000
# A value enters no mean if its magnitude is more than this many times the clients' median magnitude
# (or more than this, where the median is 0).
MAX_DEVIATION = 100.0


@dataclass(frozen=True)
class ReplyLimits:
    """What a reply must report beside its model, and how many examples it is believed to have.

    Attributes
    ----------
    weighted_by_key : str
        Name of the metric that holds the number of examples.
    max_num_examples : float
        A reply that claims more examples is refused.
    max_examples_ratio : float
        No client counts for more examples than this many times the round's median; 0: no bound.
    """

    weighted_by_key: str
    max_num_examples: float
    max_examples_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Raise ConfigError if ``max_num_examples`` is no number > 0: no reply could keep it."""
        most = self.max_num_examples
        fits = isinstance(most, Real) and float(most) > 0
        require(fits, "max_num_examples", most, "a number > 0")


@dataclass(frozen=True)
class ClientRecords:
    """The records of a reply beside its arrays, screened.

    Attributes
    ----------
    num_examples : float
        The client's weight in means: what it reports under ``weighted_by_key``, or less.
    records : RecordDict
        Every record but ArrayRecords. Metrics that are NaN, too large or impossible are left out,
        and all names are printable.
    notes : tuple of str
        What was changed or left out, and why.
    claimed_examples : float, optional
        The number of examples that the client reported, if it counts for fewer.
    """

    num_examples: float
    records: RecordDict
    notes: tuple[str, ...] = ()
    claimed_examples: float | None = None


def screen_records(
    content: RecordDict, limits: ReplyLimits, max_seconds: float = math.inf
) -> ClientRecords:
    """Check and clean what a reply holds beside its arrays.

    Parameters
    ----------
    content : RecordDict
        The reply.
    limits : ReplyLimits
        What the reply must report. The number of examples need not be whole, but > 0.
    max_seconds : float
        Longest believable training time: the seconds since the client was asked.

    Returns
    -------
    ClientRecords
        The clean records. The reply's own are left as they are.

    Raises
    ------
    ReplyError
        If the number of examples is missing or not allowed, or if the records are too large.
    """
    records = {
        name: record for name, record in content.items() if not isinstance(record, ArrayRecord)
    }
    size = sum(record.count_bytes() + len(name) for name, record in records.items())
    if size > MAX_RECORD_BYTES:
        raise ReplyError(
            f"{size} bytes beside the model's arrays; allowed: at most {MAX_RECORD_BYTES}"
        )
    key = limits.weighted_by_key
    num_examples = _num_examples(records.values(), limits)
    notes: list[str] = []
    screened = RecordDict()
    for name, record in records.items():
        shown = printable(name)
        if isinstance(record, MetricRecord):
            record = _credible(record, key, max_seconds, notes)
            if key in record:
                record[key] = num_examples
                # Means need the number of examples: its record replaces an earlier one whose name
                # looks the same once printable.
                screened.pop(shown, None)
        screened.setdefault(shown, record)
    return ClientRecords(num_examples, screened, tuple(notes))


def bound_examples(
    reported: Sequence[ClientRecords], limits: ReplyLimits
) -> Sequence[ClientRecords]:
    """Let no client count for more examples than ``max_examples_ratio`` times the round's median.

    A client above that bound is not refused, since it may really have many examples. It counts as
    if it had reported the bound.

    Parameters
    ----------
    reported : sequence of ClientRecords
        The accepted replies of one round.
    limits : ReplyLimits
        With the ratio; 0 leaves all replies as they are.

    Returns
    -------
    sequence of ClientRecords
        The replies in the same order.
    """
    if not reported or not limits.max_examples_ratio:
        return reported
    key = limits.weighted_by_key
    # The lower median: of two clients, the one with fewer examples sets the bound.
    median = statistics.median_low(reply.num_examples for reply in reported)
    maximum = _whole(limits.max_examples_ratio * median)
    bounded = []
    for reply in reported:
        if reply.num_examples > maximum:
            note = (
                f"{key} is {reply.num_examples:g}, more than {limits.max_examples_ratio:g} times "
                f"the round's median of {median:g}: counts as {maximum:g}"
            )
            bounded.append(_counting_less(reply, key, maximum, note))
        else:
            bounded.append(reply)
    return bounded


def _counting_less(reply: ClientRecords, key: str, maximum: float, note: str) -> ClientRecords:
    """Return a reply that counts for ``maximum`` examples; write that into its records too."""
    for record in reply.records.values():
        if isinstance(record, MetricRecord) and key in record:
            record[key] = maximum
    return ClientRecords(
        num_examples=maximum,
        records=reply.records,
        notes=(*reply.notes, note),
        claimed_examples=reply.num_examples,
    )


def scalar(records: RecordDict, name: str) -> float | None:
    """Return the first number that a client reports under a name; ``None`` if there is none.

    Lists of numbers do not count. Underscores in the client's names stand for hyphens:
    ``train_loss`` is ``train-loss``.
    """
    for key, value in _metrics_in(records):
        if key.replace("_", "-") == name and isinstance(value, int | float):
            return float(value)
    return None


def lost_loss(content: RecordDict) -> str:
    """Return what a refusal adds if the reply's training loss is NaN or infinite; else nothing."""
    for key, value in _metrics_in(content):
        is_loss = key.replace("_", "-") in _LOSSES
        if is_loss and isinstance(value, float) and not math.isfinite(value):
            return f"; its training loss was {value:g}"
    return ""


def _metrics_in(records: RecordDict) -> Iterator[tuple[str, object]]:
    """Yield name and value of every metric, in the order of the records."""
    for record in records.values():
        if isinstance(record, MetricRecord):
            yield from record.items()


def screen_evaluations(
    replies: Iterable[Message], asked: Sequence[int], limits: ReplyLimits
) -> list[RecordDict]:
    """Return the records of well-formed evaluation replies, at most one for each asked node.

    They stand in the order in which the nodes were asked, not in which they answered. Means then
    add up in the same order each time, and come out the same bit for bit.

    Parameters
    ----------
    replies : iterable of Message
        The replies in any order, not screened yet.
    asked : sequence of int
        Node ids. A reply from another node, or a second reply from the same one, is left out.
    limits : ReplyLimits
        What a reply must report, and how many examples it is believed to have.
    """
    waiting = set(asked)
    screened: dict[int, ClientRecords] = {}
    for reply in replies:
        node_id = reply.metadata.src_node_id
        try:
            if node_id not in waiting:
                raise ReplyError("it was not asked, or has answered before")
            waiting.remove(node_id)
            if reply.has_error():
                raise ReplyError(f"client error {reply.error.code}: {reason_of(reply.error)}")
            screened[node_id] = screen_records(reply.content, limits)
        except Exception as error:  # Nothing that a client sends may stop the server.
            logger.warning("evaluation of node %d refused: %s", node_id, printable(error))
    accepted = [screened[node_id] for node_id in asked if node_id in screened]
    return [bounded.records for bounded in bound_examples(accepted, limits)]


def _num_examples(records: Iterable[object], limits: ReplyLimits) -> float:
    """Return the number of examples from the first record that has it; whole numbers as int.

    Raises
    ------
    ReplyError
        If it is missing, not finite, not > 0, or above ``limits.max_num_examples``.
    """
    key = limits.weighted_by_key
    value = None
    for record in records:
        if isinstance(record, MetricRecord) and key in record:
            value = record[key]
            break
    if value is None:
        raise ReplyError(f"metric {key!r} is missing")
    if isinstance(value, list) or not math.isfinite(value):
        raise ReplyError(f"metric {key!r} is {str(value)[:40]}, not a finite number")
    if not 0 < value <= limits.max_num_examples:
        raise ReplyError(
            f"metric {key!r} is {value:g}; allowed: more than 0, at most "
            f"{limits.max_num_examples:g} (Setup's max_num_examples)"
        )
    return _whole(value)


def _whole(value: float) -> float:
    """Return a whole number as an int, and any other as it is."""
    whole = int(value)
    return whole if value == whole else value


def _credible(
    record: MetricRecord, weighted_by_key: str, max_seconds: float, notes: list[str]
) -> MetricRecord:
    """Return a record's metrics without NaN and impossible values, which ``notes`` then name.

    All names become printable, except ``weighted_by_key``.
    """
    credible = MetricRecord()
    for name, value in record.items():
        if name == weighted_by_key:
            # It is looked up by its exact name, and has a limit of its own.
            credible[name] = value
            continue
        shown = printable(name)
        low = -MAX_METRIC
        high = MAX_METRIC
        if name.replace("_", "-") == TRAIN_SECONDS:
            low = 0.0
            high = min(max_seconds, MAX_METRIC)
        wrong = _first_outside(value, low, high)
        if wrong is None:
            credible.setdefault(shown, value)
        elif len(notes) < MAX_NOTES:
            notes.append(f"metric {shown!r} is {wrong:g} and left out: not in {low:g} to {high:g}")
    return credible


def _first_outside(value: float | Sequence[float], low: float, high: float) -> float | None:
    """Return a metric's first number outside [low, high]; ``None`` if all are inside."""
    numbers = [value] if isinstance(value, int | float) else value
    for number in numbers:
        if not low <= number <= high:  # NaN is in no range.
            return number
    return None


def aggregate_metrics(
    records: Sequence[RecordDict], aggregate: MetricsAggregation, weighted_by_key: str
) -> MetricRecord | None:
    """Return the metrics that ``aggregate`` computes; ``None`` if it fails or nobody reported.

    Parameters
    ----------
    records : sequence of RecordDict
        One for each accepted reply, without the model's arrays.
    aggregate : callable
        ``(records, weighted_by_key)`` -> MetricRecord. An exception is logged, not raised.
    weighted_by_key : str
        Name of the metric that holds a client's number of examples.
    """
    if not records:
        return None
    try:
        return aggregate(list(records), weighted_by_key)
    except Exception as error:  # Clients choose what they report: it must not stop a run.
        reason = printable(with_place(error))
        logger.warning("the clients' metrics could not be aggregated: %s", reason)
        return None


class AverageMetrics:
    r"""Each metric's mean over the clients, weighted by their examples.

    .. math:: \bar x = \sum_i n_i x_i / \sum_i n_i

    The sums run over the clients i that report the metric; :math:`x_i` is client i's value and
    :math:`n_i` its number of examples, reported under ``weighted_by_key``. ``train_loss`` and
    ``train-loss`` are one metric.

    Two things are left out. One is a value whose magnitude is more than 100 times the clients'
    median magnitude (or more than 100, where the median is 0), if at least three clients report the
    metric. The other is a metric for which fewer than half of the clients then have a value. The
    first time that a client's value is missing or left out, a warning names the metrics; the time
    that training took needs no warning.

    The result is a mean over clients for every metric. A mean of AUCs, for example, is not the AUC
    over all clients' examples.
    """

    def __init__(self) -> None:
        self._has_warned = False  # Whether the warning has been logged.

    def __call__(self, records: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        """Return each metric's mean.

        Parameters
        ----------
        records : list of RecordDict
            One for each client, with at least one MetricRecord.
        weighted_by_key : str
            The metric that holds the client's weight, > 0.
        """
        reported: dict[str, list[_Value]] = {}
        for record in records:
            for key, value in _values(record, weighted_by_key).items():
                reported.setdefault(key, []).append(value)
        means = MetricRecord()
        lacking = []
        for key, values in reported.items():
            name = Counter(value.name for value in values).most_common(1)[0][0]
            usable = _comparable(values)
            if 2 * len(usable) >= len(records):
                means[name] = _mean(usable)
            # Training seconds differ without a fault: in a client's first round a simulation also
            # loads its libraries and data.
            if len(usable) < len(records) and key != TRAIN_SECONDS:
                lacking.append(f"{name} (of {len(usable)} of {len(records)})")
        if lacking and not self._has_warned:
            self._has_warned = True
            logger.warning("metrics that not all clients report alike: %s", enumerated(lacking))
        return means


class _Value(NamedTuple):
    """One metric of one client: a number, or a list of them."""

    name: str
    weight: float
    numbers: NDArray[np.float64]


def _values(record: RecordDict, weighted_by_key: str) -> dict[str, _Value]:
    """Return a client's metrics by name, with hyphens for underscores; the first of a name counts.

    At most ``MAX_METRICS`` metrics of at most ``MAX_VALUES`` numbers each are returned.
    """
    metrics: dict[str, Any] = {}
    for name, value in _metrics_in(record):
        metrics.setdefault(name, value)
    weight = float(metrics.pop(weighted_by_key))
    values: dict[str, _Value] = {}
    for name, value in metrics.items():
        if np.size(value) <= MAX_VALUES and len(values) < MAX_METRICS:
            array = np.array(value, dtype=np.float64)
            values.setdefault(name.replace("_", "-"), _Value(name, weight, array))
    return values


def _comparable(values: Sequence[_Value]) -> list[_Value]:
    """Return the values of the most common shape whose magnitude is not far above the median.

    A list's magnitude is that of its largest number. Fewer than three values are all returned: no
    majority says which of them is wrong.
    """
    shapes = Counter(value.numbers.shape for value in values)
    shape = shapes.most_common(1)[0][0]
    alike = [value for value in values if value.numbers.shape == shape]
    magnitudes = [np.abs(value.numbers).max(initial=0.0) for value in alike]
    if len(alike) < 3:
        return alike
    median = statistics.median(magnitudes)
    if not median:  # Most values are 0: a limit of 0 would leave out all others.
        median = 1.0
    limit = MAX_DEVIATION * median
    usable = []
    for value, magnitude in zip(alike, magnitudes, strict=True):
        if magnitude <= limit:
            usable.append(value)
    return usable


def _mean(values: Sequence[_Value]) -> float | list[float]:
    # In Flower's order of operations: honest clients' means are then Flower's, bit for bit.
    total = sum(value.weight for value in values)
    mean: NDArray[np.float64] = np.zeros(())
    for value in values:
        mean = mean + value.numbers * (value.weight / total)
    plain: float | list[float] = mean.tolist()
    return plain
