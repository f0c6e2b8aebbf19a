"""Replies of a round are screened: hostile ones, odd records, other people's names for things."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from torch import nn

from fedif_flower import FedAvg, FedIF, Krum, RobustRule, Validation
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.seeding import numpy_generator
from fedif_flower.server.nodes import identify_by_query, sample_clients
from fedif_flower.stages import Bucketing
from fedif_flower.strategies import ScreenedStrategy, Setup
from tests.server.hostile import HOSTILE, Clients, honest_parts, spoiled_reply, step_reply
from tests.strategies.lines import BASE, Threshold, built, play, point, threshold_validation


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


STRATEGIES = {"fedavg": FedAvg, "fedif": FedIF, "krum": RobustRule}


def of(name: str) -> ScreenedStrategy:
    return built(STRATEGIES[name], model(), (torch.ones(4, 2), torch.tensor([0, 1, 0, 1])))


def start(strategy, clients=None, rounds=1):
    grid = LocalGrid(clients or Clients(), 3)
    return strategy.start(grid, model_arrays(model()), num_rounds=rounds)


def step_of(result, name="0.weight") -> float:
    """How far the global model moved (clients add a constant to every float)."""
    moved = result.arrays[name].numpy() - model_arrays(model())[name].numpy()
    assert moved.max() - moved.min() < 1e-5
    return float(moved.mean())


def test_fedavg_by_hand():
    result = start(FedAvg(**BASE), rounds=2)
    # Clients add 1, 2, 3 with 10, 20, 30 examples: (1 + 4 + 9) / 6 in each round.
    assert step_of(result) == pytest.approx(28 / 6, rel=1e-5)
    assert step_of(result, "1.running_var") == pytest.approx(28 / 6, rel=1e-5)
    counter = result.arrays["1.num_batches_tracked"].numpy()
    assert (counter.dtype, counter.item()) == ("int64", 2)  # The largest.


# The base screens: one rule sees every reply, the others one each.
@pytest.mark.parametrize(
    ("kind", "rule"),
    [*((kind, "fedavg") for kind in HOSTILE), ("nan", "fedif"), ("nan", "krum")],
)
def test_a_hostile_reply_is_refused_alone(kind, rule):
    strategy = of(rule)
    clients = Clients({1: lambda message, _: spoiled_reply(message, kind)})
    result = start(strategy, clients, rounds=2)
    for report in strategy.history.rounds:
        assert report.counts == {"accepted": 2, "rejected": 1, "failed": 0, "late": 0}
        refused = report.clients[-1]
        assert (refused.node.node_id, refused.weight) == (1001, 0.0)
        assert HOSTILE[kind][1] in refused.rejection
    for array in result.arrays.values():
        assert torch.isfinite(torch.from_numpy(array.numpy())).all()
    if rule == "fedavg":
        assert step_of(result) == pytest.approx(2 * (1 * 10 + 3 * 30) / 40, rel=1e-5)


NODES = ["min_available_nodes", "min_train_nodes", "min_evaluate_nodes"]


@pytest.mark.parametrize("key", NODES)
def test_too_few_nodes_is_an_error_that_names_the_argument(key):
    class Three(LocalGrid):
        def get_node_ids(self):
            return super().get_node_ids()[:3]

    strategy = FedAvg(**{key: 5, "setup": Setup(node_timeout=0.2, device="cpu")})
    found = r"3 of 5 nodes are online after 0.2 s: start more SuperNodes, or set a lower "
    with pytest.raises(TrainingFailedError, match=found + key):
        strategy.start(Three(Clients(), 5), model_arrays(model()), num_rounds=1)


@pytest.mark.parametrize("key", [*NODES, "min_valid_replies"])
def test_nodes_that_a_grid_can_never_have_are_refused_before_anybody_trains(key):
    in_setup = {"min_valid_replies": 5} if key == "min_valid_replies" else {}
    settings = {} if in_setup else {key: 5}
    strategy = FedAvg(setup=Setup(device="cpu", **in_setup), **settings)
    with pytest.raises(ConfigError, match=f"{key} = 5, but the grid has 3 nodes, and no more"):
        start(strategy)
    assert strategy.history.rounds == []


def test_more_replies_than_are_ever_drawn_are_refused_before_anybody_trains():
    setup = Setup(device="cpu", min_valid_replies=3)
    strategy = FedAvg(fraction_train=0.7, min_train_nodes=1, setup=setup)
    words = "at most 2, as many as fraction_train = 0.7 and min_train_nodes = 1 draw of 3 nodes"
    with pytest.raises(ConfigError, match=f"^min_valid_replies = 3; allowed: {words}$"):
        start(strategy)
    assert strategy.history.rounds == []
    start(FedAvg(fraction_train=0.7, min_train_nodes=3, setup=setup))


@pytest.mark.parametrize(
    ("settings", "stages", "words"),
    [
        ({"num_selected": 3}, [], r"^Krum.num_selected = 3; allowed: at most 2, as many as"),
        (
            {"num_selected": 2},
            [Bucketing(2)],
            r"^Krum.num_selected = 2; allowed: at most 1 groups of 2 updates$",
        ),
        ({}, [Bucketing(3)], r"^Bucketing.size = 3; allowed: at most 2, as many as"),
    ],
)
def test_a_setting_of_more_updates_than_rounds_have_is_refused_before_anybody_trains(
    settings, stages, words
):
    setup = Setup(device="cpu")
    drawn = {"fraction_train": 0.7, "min_train_nodes": 1, "setup": setup}  # 2 of 3.
    strategy = RobustRule(Krum(**settings), stages=stages, **drawn)
    with pytest.raises(ConfigError, match=words):
        start(strategy)
    assert strategy.history.rounds == []
    start(RobustRule(Krum(num_selected=2), **drawn))


def test_sampling_depends_on_seed_and_round_alone():
    grid = LocalGrid(Clients(), 20)
    nodes = sorted(identify_by_query(grid, grid.get_node_ids()))
    first, again, second = (
        sample_clients(nodes, 5, numpy_generator("sample-clients", 3, t)) for t in (1, 1, 2)
    )
    assert first == again == sorted(set(first))
    assert first != second
    assert len(first) == 5


def test_order_of_replies_does_not_change_a_bit():
    class Reversed(LocalGrid):
        def stream_replies(self, messages, *, timeout=None):
            yield from list(super().stream_replies(messages))[::-1]

    arrays = model_arrays(model())
    one, other = (
        FedAvg(**BASE).start(grid(Clients(), 7), arrays, num_rounds=3).arrays
        for grid in (LocalGrid, Reversed)
    )
    assert all(one[k].data == other[k].data for k in arrays)


def test_evaluation_replies_are_screened():
    class Lying(Clients):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            if message.metadata.message_type == "evaluate" and context.node_id == 1001:
                reply.content["metrics"]["num-examples"] = 10**15
            return reply

    result = start(FedAvg(), Lying())  # Of client k the accuracy is k.
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx((0.0 + 2.0) / 2)


def test_a_diverged_model_fails_rounds_instead_of_crashing():
    line = point(1)
    nn.init.constant_(line.weight, 1e14)
    data = torch.full((1, 1), 1e30), torch.ones(1, 1)
    judge = Validation(line, *data, loss_fn=nn.functional.mse_loss, device="cpu")
    with pytest.raises(TrainingFailedError, match="3 rounds in a row"):
        FedIF(judge, **BASE).start(LocalGrid(Clients(), 3), model_arrays(line), num_rounds=5)


def test_a_function_of_ones_own_has_the_metrics_of_accepted_replies():
    def clients_of(records: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({key: [record["metrics"][key] for record in records]})

    refused = Clients({1: lambda message, _: step_reply(message, math.nan)})
    result = start(FedAvg(train_metrics_aggr_fn=clients_of, **BASE), refused)
    assert dict(result.train_metrics_clientapp[1]) == {"num-examples": [10, 30]}


def test_a_claim_of_examples_weighs_ten_medians_at_most(caplog):
    clients = Clients({0: lambda message, _: step_reply(message, 1.0, 10**6)})
    params, (report,) = play(FedAvg(**BASE), point(1), clients)
    # The others have 20 and 30 examples and add 2 and 3: the median is 30, the most is 300.
    assert params.item() == pytest.approx((1 * 300 + 2 * 20 + 3 * 30) / 350, rel=1e-6)
    liar = report.clients[0]
    assert (liar.num_examples, liar.claimed_examples) == (300, 10**6)
    assert f"node 1000: {liar.note}" in caplog.text
    unbounded = FedAvg(**BASE | {"setup": Setup(max_examples_ratio=0.0, device="cpu")})
    params, _ = play(unbounded, point(1), clients)
    assert params.item() == pytest.approx(1.0, rel=1e-3)


class Growing(LocalGrid):
    """One more node is online each time that somebody looks."""

    looks = 0

    def get_node_ids(self):
        self.looks += 1
        return super().get_node_ids()[: self.looks]


def test_the_first_round_waits_for_min_available_nodes_though_the_model_was_evaluated():
    """A server that evaluates the initial model has seen its arrays before round 1."""
    strategy = FedAvg(min_available_nodes=4, min_train_nodes=1, **BASE)
    arrays = model_arrays(point(1))
    strategy.model.receive(arrays)
    strategy.start(Growing(Clients(), 6), arrays, num_rounds=1)
    assert len(strategy.history.rounds[0].clients) == 4


def test_members_are_named_as_the_operator_calls_them(caplog):
    def identify(grid, node_ids):
        return [ClientNode(n - 1000, n, name=f"hospital {n - 999}") for n in node_ids]

    setup = Setup(identify=identify, device="cpu")
    strategy = FedIF(threshold_validation(), **BASE | {"setup": setup})
    clients = Clients({1: lambda message, _: step_reply(message, math.nan)})
    play(strategy, Threshold(), clients)
    assert "round 1: hospital 2 (node 1001): array 'weight' has NaN or Inf" in caplog.text
    assert list(strategy.weight_scores) == ["hospital 1", "hospital 3"]
    assert list(strategy.weight_scores.values()) == list(strategy.ledger.scores.values())


# -- any reply at all: no exception, no model that is not finite, no undue weight


text = st.text(max_size=5)
names = st.sampled_from(["0.weight", "0.bias", "1.num_batches_tracked", "x", ""]) | text
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats()
dtypes = (
    arrays_of.floating_dtypes()
    | arrays_of.integer_dtypes()
    | arrays_of.complex_number_dtypes()
    | arrays_of.boolean_dtypes()
    | arrays_of.unicode_string_dtypes(max_len=3)
)
shapes = st.sampled_from([(3, 2), (3,), (2, 3), (), (0,), (1,)])
values = st.builds(pack_array, dtypes.flatmap(lambda d: arrays_of.arrays(d, shapes)))
raw_arrays = st.builds(
    Array,
    dtype=st.sampled_from(["float32", "int64", "object", "nonsense", ""]),
    shape=st.lists(st.integers(-1, 2**40), max_size=3).map(tuple),
    stype=st.sampled_from(["numpy.ndarray", "pickle", ""]),
    data=st.binary(max_size=200),
)


@st.composite
def wounded(draw: st.DrawFn) -> Array:
    """A real array whose bytes were tampered with."""
    array = draw(values)
    position, cut = draw(st.integers(0, len(array.data))), draw(st.integers(0, 8))
    data = array.data[:position] + draw(st.binary(max_size=4)) + array.data[position + cut :]
    return Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=data)


any_array = values | raw_arrays | wounded()
metric_values = numbers | st.lists(st.integers(-(2**63), 2**63 - 1)) | st.lists(st.floats())
metric_names = st.sampled_from(["num-examples", "train-loss", "train-seconds"]) | text


@st.composite
def replies(draw: st.DrawFn, message: Message) -> Message:
    """Anything from an honest reply to nothing of it."""
    if draw(st.integers(0, 9)) == 0:
        error = Error(code=draw(st.integers(-5, 20)), reason=draw(st.text(max_size=20)))
        return Message(error, reply_to=message)
    arrays, metrics = honest_parts(message, draw(st.floats(-10, 10, width=32)))
    for name in draw(st.lists(st.sampled_from(sorted(arrays)) | names, max_size=3)):
        if draw(st.booleans()):
            arrays.pop(name, None)
        else:
            arrays[name] = draw(any_array)
    metrics |= draw(st.dictionaries(metric_names, metric_values, max_size=3))
    for name in draw(st.lists(metric_names, max_size=1)):
        metrics.pop(name, None)
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}
    records = st.sampled_from([None, *content.values(), ConfigRecord({"a": "b"})])
    for name in draw(st.lists(names | st.sampled_from(["arrays", "metrics"]), max_size=2)):
        content[name] = draw(records)
    kept = {name: record for name, record in content.items() if record is not None}
    return Message(RecordDict(kept), reply_to=message)


@pytest.mark.parametrize("rule", STRATEGIES)
@given(st.data())
def test_no_reply_stops_the_server_or_gets_weight_that_is_not_due(rule, data):
    clients = Clients({1: lambda message, _: data.draw(replies(message))})
    strategy = of(rule)
    result = strategy.start(LocalGrid(clients, 4), model_arrays(model()), num_rounds=2)
    assert len(strategy.history.rounds) == 2
    for report in strategy.history.rounds:
        # Four are asked, or three while the hostile one is paused.
        assert len(report.clients) in (3, 4)
        assert report.counts["accepted"] >= 3
        for client in report.clients:
            assert np.isfinite(client.weight)
            if client.rejection:
                assert (client.node.node_id, client.weight) == (1001, 0.0)
    for array in result.arrays.values():
        assert np.isfinite(array.numpy()).all()
