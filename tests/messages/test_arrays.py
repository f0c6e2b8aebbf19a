"""Arrays as they travel, what a reply may change of them, and where they lie in vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn
from torch import nn

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
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import load_arrays, model_arrays, tensor_arrays
from fedif_flower.tasks.modules import tied_names, trainable_names


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
    with pytest.raises(ReplyError, match="'x' of <U1 was changed; allowed: the values sent"):
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


@given(honest=st.lists(st.integers(1, 100), min_size=3, max_size=9), data=st.data())
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


# -- where they lie


def batch_norm_model(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))


def layout_of(model: nn.Module) -> ParameterLayout:
    return ParameterLayout.from_arrays(model_arrays(model), trainable_names(model))


def test_layout_tells_parameters_buffers_and_counters_apart():
    layout = layout_of(batch_norm_model())
    assert ParameterLayout.from_arrays(model_arrays(batch_norm_model())) == layout
    assert [spec.name for spec in layout.trainable] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [spec.name for spec in layout.buffers] == ["1.running_mean", "1.running_var"]
    assert [spec.name for spec in layout.counters] == ["1.num_batches_tracked"]
    assert (layout.num_params, layout.num_buffers) == (15, 6)


def test_the_model_itself_may_have_large_finite_values():
    values = np.array([3e38, -3e38], np.float32)
    arrays = ArrayRecord({"a": pack_array(values)})
    vectors = ParameterLayout.from_arrays(arrays).to_vectors(arrays)
    assert vectors.params.tolist() == values.tolist()


def test_an_update_is_what_changed_and_its_norm():
    model = batch_norm_model()
    layout, arrays = layout_of(model), dict(model_arrays(model))
    received = layout.to_vectors(arrays)
    arrays["0.bias"] = pack_array(arrays["0.bias"].numpy() + np.float32(2))
    arrays["1.running_var"] = pack_array(arrays["1.running_var"].numpy() + np.float32(5))
    arrays["1.num_batches_tracked"] = pack_array(np.array(7))
    update, buffer_update = torch.empty(15), torch.empty(6)
    unpacked = layout.unpack_update(arrays, received, update, buffer_update)
    assert update.tolist() == pytest.approx([0.0] * 6 + [2.0] * 3 + [0.0] * 6)
    assert buffer_update.tolist() == [0.0] * 3 + [5.0] * 3
    assert unpacked.squared_norm == pytest.approx(12.0)  # buffers do not enter norms
    assert unpacked.counters["1.num_batches_tracked"].item() == 7


def test_a_buffer_that_is_a_single_number_stays_one():
    """A frozen scale, for example, has no dimension."""
    model = nn.Linear(2, 1, bias=False)
    model.register_buffer("scale", torch.tensor(3.0))
    layout = layout_of(model)
    scale = layout.named_buffers(layout.to_vectors(model_arrays(model)))["scale"]
    assert (scale.shape, scale.item()) == ((), 3.0)
    assert layout.split_buffers(torch.tensor([[4.0], [5.0]]))["scale"].tolist() == [4.0, 5.0]


# -- arrays that are no vectors -----------------------------------------------------------------


def test_arrays_that_are_one_in_the_model_and_differ_in_the_record_are_refused():
    model = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "head": nn.Linear(2, 3)})
    arrays = model_arrays(model)
    model["head"].weight = model["embedding"].weight
    with pytest.raises(ValueError, match=r"'head.weight' and 'embedding.weight' are one array"):
        ParameterLayout.from_arrays(arrays, trainable_names(model), tied_names(model))


def test_load_arrays_of_another_model_is_a_clear_error():
    with pytest.raises(ValueError, match=r"(?s)is not the server's: .*0.weight"):
        load_arrays(batch_norm_model(4), model_arrays(batch_norm_model()))
    with pytest.raises(ValueError, match=r"server.s: 0\.bias, 0\.weight"):
        load_arrays(nn.Linear(2, 3), model_arrays(batch_norm_model()))


def test_bfloat16_travels_as_float32_and_comes_back_bit_for_bit():
    """Every number of it: NaN and Inf, the smallest and the largest."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    arrays = tensor_arrays({"w": every, "n": torch.tensor([3])})
    assert str(arrays["w"].numpy().dtype) == arrays["w"].dtype == "float32"
    assert arrays["n"].dtype == "int64"
    back = torch.from_numpy(arrays["w"].numpy()).bfloat16()
    assert torch.equal(back.isnan(), every.isnan())
    finite = ~every.isnan()
    assert torch.equal(back[finite].view(torch.int16), every[finite].view(torch.int16))
    model, other = batch_norm_model().bfloat16(), batch_norm_model().bfloat16()
    load_arrays(other, model_arrays(model))
    assert all(torch.equal(other.state_dict()[k], v) for k, v in model.state_dict().items())
