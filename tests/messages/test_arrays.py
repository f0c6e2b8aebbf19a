from __future__ import annotations

import io

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fedif_flower.errors import ReplyError
from fedif_flower.messages.arrays import ArraySpec, arrays_of, pack_array, view_array
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


def array_with(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype="float32", shape=(1,), stype=stype, data=data)


def object_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (array_with(b"garbage"), "not a NumPy array"),
        (array_with(object_array()), "object"),
        (array_with(pack_array(np.ones(3)).data[:-1]), "length"),
        (array_with(pack_array(np.ones(3)).data, "torch.tensor"), "serialisation"),
    ],
)
def test_bytes_that_are_no_array_are_refused(array, reason):
    with pytest.raises(ReplyError, match=reason):
        view_array(array)


def test_spec_views_what_fits_and_names_what_does_not():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    spec = ArraySpec.of("w", values)
    for fitting in (values, np.asfortranarray(values), values.astype(np.float64)):
        np.testing.assert_array_equal(spec.view(Array(fitting)), values)
    for other, reason in (
        (pack_array(values.astype(np.int64)), "'w' has dtype int64"),
        (pack_array(values.T), r"'w' has shape \(3, 2\)"),
        (array_with(pack_array(values).data + b"more"), "'w': length"),
    ):
        with pytest.raises(ReplyError, match=reason):
            spec.view(other)


MODEL, VECTOR = (ArrayRecord({"w": Array(np.full(2, v))}) for v in (1.0, 2.0))


def test_the_vector_beside_the_model_is_not_the_models():
    metrics = MetricRecord({"loss": 1.0})
    found = arrays_of(RecordDict({VECTOR_RECORD: VECTOR, "metrics": metrics, "arrays": MODEL}))
    assert found == MODEL
    for records in ({}, {VECTOR_RECORD: VECTOR}, {"a": MODEL, "b": VECTOR}):
        with pytest.raises(ReplyError, match="expected one ArrayRecord"):
            arrays_of(RecordDict({**records, "metrics": metrics}))
