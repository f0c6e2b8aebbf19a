from __future__ import annotations

import logging

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedif_flower.messages.metrics import MAX_METRICS, AverageMetrics, aggregate_metrics


def records(*metrics):
    return [RecordDict({"metrics": MetricRecord({"n": 1} | one)}) for one in metrics]


def test_the_mean_is_flowers_bit_for_bit():
    clients = records(
        {"n": 3, "loss": 0.1, "top": [0.7, 2.0]},
        {"n": 7, "loss": 0.2, "top": [0.1, 3.0]},
        {"n": 11, "loss": 0.7, "top": [0.3, 5.0]},
    )
    assert dict(AverageMetrics()(clients, "n")) == dict(aggregate_metricrecords(clients, "n"))


def test_a_metric_that_one_client_lacks(caplog):
    average = AverageMetrics()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            means = average(records({"n": 3, "a": 1.0}, {"a": 5.0}, {"b": 9.0}), "n")
    assert dict(means) == {"a": pytest.approx((3 * 1.0 + 5.0) / 4)}
    (said,) = caplog.messages
    assert "a (of 2 of 3), b (of 1 of 3)" in said


def test_one_liar_does_not_move_a_mean():
    means = AverageMetrics()(records({"a": 1.0}, {"a": 2.0}, {"a": 3.0}, {"a": 1e15}), "n")
    assert dict(means) == {"a": pytest.approx(2.0)}


def test_metrics_of_several_records_and_only_so_many():
    many = {f"m{i}": 1.0 for i in range(2 * MAX_METRICS)}
    clients = [
        RecordDict(
            {
                "first": MetricRecord({"a": 1.0, "long": [0.0] * 10_000}),
                "more": MetricRecord({"n": 2, "b": 4.0, **many}),
                "config": ConfigRecord({"c": "d"}),
            }
        )
    ]
    means = AverageMetrics()(clients, "n")
    assert len(means) == MAX_METRICS
    assert (means["a"], means["b"]) == (1.0, 4.0)
    assert "long" not in means


def test_a_function_that_raises_stops_nothing(caplog):
    def fail(clients, key):
        raise KeyError("\x1b")

    assert aggregate_metrics(records({}), fail, "n") is None
    assert aggregate_metrics([], fail, "n") is None
    assert "could not be aggregated: KeyError" in caplog.text
    assert "\x1b" not in caplog.text
