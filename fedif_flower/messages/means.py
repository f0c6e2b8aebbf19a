"""Means of the clients' metrics: no client can steer them far, none can stop them."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

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
    times the median of at least three clients'. A warning names such metrics, once.
    """

    def __init__(self) -> None:
        self._told = False  # Whether the log has said that some lack a metric.

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
            for key, value in _values(record, weighted_by_key).items():
                reported.setdefault(key, []).append(value)
        means, lacking = MetricRecord(), []
        for values in reported.values():
            name = Counter(value.name for value in values).most_common(1)[0][0]
            usable = _comparable(values)
            if 2 * len(usable) >= len(records):
                means[name] = _mean(usable)
            if len(usable) < len(records):
                lacking.append(f"{name} (of {len(usable)} of {len(records)})")
        if lacking and not self._told:
            self._told = True
            told = enumerated(lacking)
            logger.warning("metrics that not all clients report alike: %s", told)
        return means


class _Value(NamedTuple):
    """One metric of one client: a number, or a list of them."""

    name: str
    weight: float
    numbers: NDArray[np.float64]


def _values(record: RecordDict, weighted_by_key: str) -> dict[str, _Value]:
    """Return a client's first metrics, by what is one name."""
    metrics: dict[str, Any] = {}
    for own in record.values():
        if isinstance(own, MetricRecord):
            metrics |= {name: value for name, value in own.items() if name not in metrics}
    weight = float(metrics.pop(weighted_by_key))
    values: dict[str, _Value] = {}
    for name, value in metrics.items():
        if np.size(value) <= MAX_VALUES and len(values) < MAX_METRICS:
            numbers = np.array(value, dtype=np.float64)
            values.setdefault(name.replace("_", "-"), _Value(name, weight, numbers))
    return values


def _comparable(values: Sequence[_Value]) -> list[_Value]:
    """Return the values of the most common length that are not far beyond their median."""
    ((shape, _),) = Counter(value.numbers.shape for value in values).most_common(1)
    alike = [value for value in values if value.numbers.shape == shape]
    magnitudes = [np.abs(value.numbers).max(initial=0.0) for value in alike]
    limit = MAX_DEVIATION * statistics.median(magnitudes)
    if len(alike) < 3 or limit == 0:
        return alike
    return [v for v, magnitude in zip(alike, magnitudes, strict=True) if magnitude <= limit]


def _mean(values: Sequence[_Value]) -> float | list[float]:
    # In Flower's order of operations, so that honest clients' means are Flower's bit for bit.
    total = sum(value.weight for value in values)
    mean: float | list[float] = sum(
        (value.numbers * (value.weight / total) for value in values), np.zeros(())
    ).tolist()
    return mean
