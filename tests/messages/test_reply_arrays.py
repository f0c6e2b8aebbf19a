"""Which arrays of a reply are the model's."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fedif_flower.errors import ReplyError
from fedif_flower.messages.instructions import VECTOR_RECORD
from fedif_flower.messages.reply_arrays import arrays_of, model_arrays_of

MODEL, VECTOR = (ArrayRecord({"w": Array(np.full(2, v))}) for v in (1.0, 2.0))


def reply(**records):
    return RecordDict({**records, "metrics": MetricRecord({"loss": 1.0})})


def test_the_vector_beside_the_model_is_not_the_models():
    for order in (
        {"arrays": MODEL, VECTOR_RECORD: VECTOR},
        {VECTOR_RECORD: VECTOR, "arrays": MODEL},
    ):
        assert model_arrays_of(reply(**order)) == MODEL
    with pytest.raises(ReplyError, match="got 2"):  # Nobody asked for a vector.
        arrays_of(reply(arrays=MODEL, **{VECTOR_RECORD: VECTOR}))


@pytest.mark.parametrize("records", [{}, {VECTOR_RECORD: VECTOR}, {"a": MODEL, "b": VECTOR}])
def test_none_and_two_are_refused(records):
    with pytest.raises(ReplyError, match="expected one ArrayRecord"):
        model_arrays_of(reply(**records))
