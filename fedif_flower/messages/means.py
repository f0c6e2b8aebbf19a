"""Means of the clients' metrics: no client can steer them far, none can stop them."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import MetricRecord, RecordDict

from fedif_flower.messages.text import enumerated, printable

logger = logging.getLogger(__name__)

MetricsAggregation = Callable[[list[RecordDict], str], MetricRecord]

# Only so many metrics of a client, and so many values of one, enter means, which Flower logs.
MAX_METRICS = 100
MAX_VALUES = 1000
# Farther than this many times from the clients' median, a value enters no mean.
MAX_DEVIATION = 100.0


def aggregate_metrics(
    records: Sequence[RecordDict], aggregate: MetricsAggregation, weighted_by_key: str
) -> MetricRecord | None:
    """Return what ``aggregate`` makes of the clients' records, or ``None`` if it fails.

    Parameters
    ----------
    records : sequence of RecordDict
        One for each accepted reply, without the model's arrays.
    aggregate : callable
        ``(records, weighted_by_key)`` -> MetricRecord.
    weighted_by_key : str
        The metric that counts a client's examples.
    """
    try:
        return aggregate(list(records), weighted_by_key) if records else None
    except Exception as error:  # metrics are the clients' words: they must not stop a run
        logger.warning("the clients' metrics could not be aggregated: %s", printable(repr(error)))
        return None


class AverageMetrics:
    r"""Each metric's mean over the clients, weighted by their examples.

    .. math:: \bar x = \sum_i n_i x_i / \sum_i n_i

    over the clients i that report the metric, :math:`n_i` being what they report under
    ``weighted_by_key``. ``train_loss`` and ``train-loss`` are one metric. A metric that fewer than
    half of the clients report is left out, and so is a value whose magnitude is more than 100
    times the median of at least three clients'. A warning names such a metric, once.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()  # Metrics that some lack, as the log has said.

    def __call__(self, records: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        """Return the means.

        Parameters
        ----------
        records : list of RecordDict
            One for each client, with at least one MetricRecord.
        weighted_by_key : str
            The metric that holds the client's weight, > 0.
        """
        reported: dict[str, list[_Value]] = {}
        for record in records:
            for value in _values(record, weighted_by_key):
                reported.setdefault(value.name.replace("_", "-"), []).append(value)
        means, lacking = MetricRecord(), []
        for values in reported.values():
            name = Counter(value.name for value in values).most_common(1)[0][0]
            usable = _comparable(_of_one_length(values))
            if 2 * len(usable) >= len(records):
                means[name] = _mean(usable)
            if len(usable) < len(records):
                lacking.append((name, len(usable)))
        news = [(name, count) for name, count in lacking if name not in self._told]
        if news and len(self._told) < MAX_METRICS:
            self._told |= {name for name, _ in news}
            which = [f"{name} (of {count} of {len(records)})" for name, count in news]
            logger.warning("metrics that not all clients report alike: %s", enumerated(which))
        return means


@dataclass(frozen=True)
class _Value:
    """One metric of one client; a single number is a list of one."""

    name: str
    weight: float
    numbers: Sequence[float]
    is_list: bool


def _values(record: RecordDict, weighted_by_key: str) -> list[_Value]:
    """Return a client's first metrics, one of each name."""
    metrics: dict[str, int | float | list[int] | list[float]] = {}
    for own in record.values():
        if isinstance(own, MetricRecord):
            metrics |= {name: value for name, value in own.items() if name not in metrics}
    weight = metrics.pop(weighted_by_key)
    assert not isinstance(weight, list)  # screened
    values: dict[str, _Value] = {}
    for name, value in metrics.items():
        numbers = value if isinstance(value, list) else [value]
        if len(numbers) <= MAX_VALUES and len(values) < MAX_METRICS:
            one = _Value(name, float(weight), numbers, isinstance(value, list))
            values.setdefault(name.replace("_", "-"), one)
    return list(values.values())


def _of_one_length(values: Sequence[_Value]) -> list[_Value]:
    """Return the values of the most common length."""
    ((shape, _),) = Counter((v.is_list, len(v.numbers)) for v in values).most_common(1)
    return [v for v in values if (v.is_list, len(v.numbers)) == shape]


def _comparable(alike: list[_Value]) -> list[_Value]:
    """Return the values that are not far beyond their median."""
    magnitudes = [max((abs(number) for number in v.numbers), default=0.0) for v in alike]
    limit = MAX_DEVIATION * statistics.median(magnitudes)
    if len(alike) < 3 or limit == 0:
        return alike
    return [v for v, magnitude in zip(alike, magnitudes, strict=True) if magnitude <= limit]


def _mean(values: Sequence[_Value]) -> float | list[float]:
    # In Flower's order of operations, so that honest clients' means are Flower's bit for bit.
    total = sum(value.weight for value in values)
    shares = [value.weight / total for value in values]
    columns = zip(*(value.numbers for value in values), strict=True)
    means = [sum(x * share for x, share in zip(column, shares, strict=True)) for column in columns]
    return means if values[0].is_list else means[0]
