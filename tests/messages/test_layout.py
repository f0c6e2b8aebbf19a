from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import load_arrays, model_arrays, tensor_arrays
from fedif_flower.tasks.modules import tied_names, trainable_names


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
