"""What a client reports beside its model: everything is taken that can be, nothing believed."""

from __future__ import annotations

import logging
import math

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore.task_identity import TaskIdentity

from fedif_flower.errors import ReplyError
from fedif_flower.messages.metrics import (
    MAX_METRICS,
    MAX_NOTES,
    MAX_RECORD_BYTES,
    AverageMetrics,
    ReplyLimits,
    aggregate_metrics,
    bound_examples,
    scalar,
    screen_evaluations,
    screen_records,
)

LIMITS = ReplyLimits("n", max_num_examples=1000.0)


def screen(limits=LIMITS, max_seconds=math.inf, **records):
    return screen_records(RecordDict(records), limits, max_seconds)


def test_further_records_are_kept_as_they_came():
    config = ConfigRecord({"pickled": b"\x80\x04", "who": "Zoë"})
    first = MetricRecord({"loss": 0.5})
    metrics = {"n": 10, "loss": 1.5, "histogram": [1, 2]}
    screened = screen(
        arrays=ArrayRecord(), first=first, metrics=MetricRecord(metrics), config=config
    )
    assert screened.num_examples == 10
    assert list(screened.records) == ["first", "metrics", "config"]
    assert screened.records["config"] is config
    assert dict(screened.records["metrics"]) == metrics
    assert scalar(screened.records, "loss") == 0.5
    assert screened.notes == ()


def test_what_cannot_be_is_left_out_and_noted():
    reported = {"n": 1, "loss": math.nan, "top": [0.5, math.inf], "b": 1e16, "train_seconds": 61.0}
    screened = screen(max_seconds=60.0, metrics=MetricRecord(reported))
    assert dict(screened.records["metrics"]) == {"n": 1}
    assert [note.split(" and ")[0] for note in screened.notes] == [
        "metric 'loss' is nan",
        "metric 'top' is inf",
        "metric 'b' is 1e+16",
        "metric 'train_seconds' is 61",
    ]
    assert "not in 0 to 60" in screened.notes[-1]
    before = screen(max_seconds=60.0, metrics=MetricRecord({"n": 1, "train-seconds": -1.0}))
    assert scalar(before.records, "train-seconds") is None
    fast = screen(max_seconds=60.0, metrics=MetricRecord({"n": 1, "train-seconds": 59.0}))
    assert scalar(fast.records, "train-seconds") == 59.0


def test_names_are_made_printable_and_notes_are_few():
    names = {f"{i}\x1b[31m": math.nan for i in range(100)}
    screened = screen(**{"m\n": MetricRecord({"n": 1, "loss\ud800": 2.0, **names})})
    assert list(screened.records) == ["m?"]
    assert dict(screened.records["m?"]) == {"n": 1, "loss?": 2.0}
    assert len(screened.notes) == MAX_NOTES
    assert screened.notes[0].startswith("metric '0?[31m'")


def test_the_number_of_examples_is_not_lost_to_a_record_whose_name_reads_alike():
    reported = {"\x01": MetricRecord({"loss": 3.0}), "\x02": MetricRecord({"n": 1, "loss": 1.0})}
    hostile = screen(**reported).records
    assert dict(AverageMetrics()([hostile, *records_with({"loss": 2.0})], "n")) == {"loss": 1.5}


def test_the_number_of_examples_may_be_as_large_as_its_own_limit():
    limits = ReplyLimits("n", max_num_examples=math.inf)
    screened = screen(limits, metrics=MetricRecord({"n": 2e15, "loss": 3.0, "b": 2e15}))
    assert dict(screened.records["metrics"]) == {"n": 2e15, "loss": 3.0}
    assert len(screened.notes) == 1


def test_too_many_examples_are_refused_by_the_name_of_the_setting():
    """Tokens, for example, may be more than the default allows."""
    words = r"'n' is 5e\+07; allowed: .*, at most 1000 \(Setup's max_num_examples\)$"
    with pytest.raises(ReplyError, match=words):
        screen(metrics=MetricRecord({"n": 50_000_000}))


def test_a_reply_holds_only_so_much_beside_the_model():
    big = ConfigRecord({"x": b"0" * MAX_RECORD_BYTES})
    with pytest.raises(ReplyError, match=r"bytes beside the model's arrays; allowed: at most"):
        screen(metrics=MetricRecord({"n": 1}), config=big)


def test_nobody_counts_for_more_than_a_multiple_of_the_median():
    limits = ReplyLimits("n", 1e9, max_examples_ratio=10.0)
    reported = [screen(limits, metrics=MetricRecord({"n": n})) for n in (1, 2, 3, 20, 10**6)]
    bounded = bound_examples(reported, limits)
    assert [reply.num_examples for reply in bounded] == [1, 2, 3, 20, 30]
    assert [reply.claimed_examples for reply in bounded] == [None] * 4 + [10**6]
    assert bounded[-1].records["metrics"]["n"] == 30
    assert bounded[-1].notes == (
        "n is 1e+06, more than 10 times the round's median of 3: counts as 30",
    )
    assert bounded[-2].notes == ()
    # Of two, the smaller is believed; 0 switches the bound off.
    assert bound_examples(reported[:1] + reported[-1:], limits)[-1].num_examples == 10
    assert bound_examples(reported, LIMITS)[-1].num_examples == 10**6


def records_with(*metrics):
    """Return a record for each client, with a number of examples."""
    return [RecordDict({"metrics": MetricRecord({"n": 1} | values)}) for values in metrics]


def test_the_mean_is_flowers_bit_for_bit(caplog):
    clients = records_with(
        {"n": 3, "loss": 0.1, "top": [0.7, 2.0]},
        {"n": 7, "loss": 0.2, "top": [0.1, 3.0]},
        {"n": 11, "loss": 0.7, "top": [0.3, 5.0]},
    )
    assert dict(AverageMetrics()(clients, "n")) == dict(aggregate_metricrecords(clients, "n"))
    assert caplog.messages == []  # Nobody lacks any.


def test_a_metric_that_one_client_lacks(caplog):
    average = AverageMetrics()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            means = average(records_with({"n": 3, "a": 1.0}, {"a": 5.0}, {"b": 9.0}), "n")
    assert dict(means) == {"a": pytest.approx((3 * 1.0 + 5.0) / 4)}
    (warning,) = caplog.messages
    assert "a (of 2 of 3), b (of 1 of 3)" in warning
    # Half of them are enough.
    assert dict(average(records_with({"a": 1.0}, {}), "n")) == {"a": 1.0}


@pytest.mark.parametrize("name", ["train-seconds", "train_seconds"])
def test_training_times_need_not_be_alike(name, caplog):
    AverageMetrics()(records_with({name: 1.0}, {name: 1.0}, {name: 500.0}), "n")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("told", "mean"),
    [
        ([1.0, 2.0, 3.0, 1e15], 2.0),
        ([0.0, 0.0, 1e15], 0.0),  # Most have missed nothing.
        ([0.0, 0.0, 3.0], 1.0),
        ([0.0, 0.0, 0.0, -101.0, 100.0], 25.0),
    ],
)
def test_one_liar_does_not_move_a_mean(told, mean):
    means = AverageMetrics()(records_with(*({"a": value} for value in told)), "n")
    assert dict(means) == {"a": pytest.approx(mean)}


def test_evaluations_are_in_the_order_asked_whoever_is_first(monkeypatch):
    for name in ("run_id", "task_id", "node_id"):  # Flower stamps every message with them.
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)

    def replies(*node_ids):
        for node_id in node_ids:
            asked = Message(RecordDict(), node_id, MessageType.EVALUATE)
            asked.metadata.__dict__["_message_id"] = f"question-{node_id}"
            content = RecordDict({"metrics": MetricRecord({"n": 1, "node": node_id})})
            reply = Message(content, reply_to=asked)
            reply.metadata.__dict__["_src_node_id"] = node_id
            yield reply

    found = screen_evaluations(replies(3, 9, 2, 1, 2), [1, 2, 3, 4], LIMITS)
    assert [records["metrics"]["node"] for records in found] == [1, 2, 3]


def test_metrics_of_several_records_and_only_so_many():
    many = {f"m{i}": 1.0 for i in range(2 * MAX_METRICS)}
    first = MetricRecord({"a": 1.0, "long": [0.0] * 10_000})
    more = MetricRecord({"n": 2, "b": 4.0, **many})
    client = RecordDict({"first": first, "more": more, "config": ConfigRecord({"c": "d"})})
    means = AverageMetrics()([client], "n")
    assert len(means) == MAX_METRICS
    assert (means["a"], means["b"]) == (1.0, 4.0)
    assert "long" not in means


def test_a_function_that_raises_stops_nothing(caplog):
    def fail(clients, key):
        raise KeyError("\x1b")

    assert aggregate_metrics(records_with({}), fail, "n") is None
    assert aggregate_metrics([], fail, "n") is None
    assert "could not be aggregated: KeyError" in caplog.text
    assert "\x1b" not in caplog.text
