"""Replies of any content at all: no exception, no model that is not finite, no undue weight."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from tests.strategies.hostile import Clients, honest_parts
from tests.strategies.test_screened import STRATEGIES, model, of

HOSTILE = 1

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
    clients = Clients({HOSTILE: lambda message, _: data.draw(replies(message))})
    strategy = of(rule)
    result = strategy.start(LocalGrid(clients, 4), model_arrays(model()), num_rounds=2)
    assert len(strategy.history.rounds) == 2
    for report in strategy.history.rounds:
        # Four are asked, or three while the hostile one is paused.
        assert len(report.clients) in (3, 4)
        assert report.counts["accepted"] >= 3
        for client in report.clients:
            assert client.weight is not None
            assert np.isfinite(client.weight)
            if client.rejection:
                assert (client.node.node_id, client.weight) == (1000 + HOSTILE, 0.0)
    for array in result.arrays.values():
        assert np.isfinite(array.numpy()).all()
