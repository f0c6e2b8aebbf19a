from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn

from fedif_flower.errors import ReplyError
from fedif_flower.messages.arrays import (
    MAX_ADVANCE,
    MAX_TIMES_MEDIAN,
    ArraySpec,
    arrays_of,
    measure_advance,
    pack_array,
    refuse_advances,
    view_array,
)
from fedif_flower.messages.instructions import VECTOR_RECORD


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3, dtype=np.int64),
        np.empty((0, 4), dtype=np.float16),
        np.array([True, False]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
)
def test_packing_is_flowers_format(values):
    packed = pack_array(values)
    np.testing.assert_array_equal(packed.numpy(), values)
    assert packed.numpy().dtype == values.dtype
    flower = Array(values)
    assert (packed.dtype, packed.shape, packed.stype) == (flower.dtype, flower.shape, flower.stype)
    np.testing.assert_array_equal(view_array(flower), values)
    assert not view_array(flower).flags.writeable


def test_what_fits_is_read_in_any_order_and_width():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    spec = ArraySpec.of("w", values)
    for fitting in (values, np.asfortranarray(values), values.astype(np.float64)):
        np.testing.assert_array_equal(spec.view(Array(fitting)), values)


MODEL, VECTOR = (ArrayRecord({"w": Array(np.full(2, v))}) for v in (1.0, 2.0))


def test_the_vector_beside_the_model_is_not_the_models():
    metrics = MetricRecord({"loss": 1.0})
    found = arrays_of(RecordDict({VECTOR_RECORD: VECTOR, "metrics": metrics, "arrays": MODEL}))
    assert found == MODEL
    for records in ({}, {VECTOR_RECORD: VECTOR}, {"a": MODEL, "b": VECTOR}):
        with pytest.raises(ReplyError, match="expected one ArrayRecord"):
            arrays_of(RecordDict({**records, "metrics": metrics}))


integers = (drawn.integer_dtypes() | drawn.unsigned_integer_dtypes()).flatmap(
    lambda dtype: drawn.arrays(dtype, 3)
)


def test_what_is_no_integer_stays_as_it_was():
    with pytest.raises(ReplyError, match="'x' of <U1 was changed"):
        measure_advance("x", np.array("a"), np.array("b"))


@given(st.data())
def test_every_pair_of_arrays_is_unchanged_or_a_bounded_advance_or_refused(data):
    received = data.draw(integers)
    returned = data.draw(drawn.arrays(received.dtype, received.shape))
    steps = [int(new) - int(old) for old, new in zip(received, returned, strict=True)]
    try:
        assert measure_advance("x", received, returned) == max(steps)
    except ReplyError:
        assert min(steps) < 0 or max(steps) > MAX_ADVANCE
    else:
        assert min(steps) >= 0


def test_a_counter_may_advance_for_one_client_alone_and_not_run_away():
    name = "1.num_batches_tracked"
    assert refuse_advances([{}, {}, {name: 7}]) == {}
    limit = MAX_TIMES_MEDIAN * 5
    # The median of 4, 5, 6, 500 and 501 is 6.
    assert refuse_advances([{name: n} for n in (5, limit + 1, 4, limit, 6)]) == {}
    reasons = refuse_advances([{name: 5}, {name: limit + 1}, {name: 5}])
    assert reasons == {1: f"integer array '{name}' advances by 501; the median is 5"}


NAMES = st.sampled_from(["n", "1.num_batches_tracked", "position_ids"])


@given(
    honest=st.lists(st.integers(1, 100), min_size=3, max_size=9),
    data=st.data(),
)
def test_no_minority_moves_an_index_or_has_an_honest_counter_refused(honest, data):
    hostile = data.draw(
        st.lists(
            st.dictionaries(NAMES, st.integers(1, MAX_ADVANCE)), max_size=(len(honest) - 1) // 2
        )
    )
    replies = [{"n": steps} for steps in honest] + hostile
    reasons = refuse_advances(replies)
    assert not [position for position in reasons if position < len(honest)]
    for position, own in enumerate(hostile, start=len(honest)):
        if "position_ids" in own:
            assert position in reasons
        if position not in reasons and "n" in own:
            assert own["n"] <= MAX_TIMES_MEDIAN * max(honest)
