from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from fedif_flower.errors import ReplyError
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


def tied_model() -> nn.Module:
    model = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "head": nn.Linear(2, 3)})
    model["head"].weight = model["embedding"].weight
    return model


def test_a_tied_array_is_once_in_the_vector_and_twice_in_the_record():
    model = tied_model()
    arrays = model_arrays(model)
    layout = ParameterLayout.from_arrays(arrays, trainable_names(model), tied_names(model))
    vectors = layout.to_vectors(arrays)
    assert vectors.params.tolist() == [*model["embedding"].weight.flatten(), *model["head"].bias]
    back = layout.to_arrays(vectors)
    assert list(back) == list(arrays) == ["embedding.weight", "head.weight", "head.bias"]
    assert all(back[name].data == arrays[name].data for name in arrays)
    assert layout.named_buffers(vectors) == {}
    differing = dict(arrays) | {"head.weight": pack_array(np.ones((3, 2), np.float32))}
    with pytest.raises(ReplyError, match=r"'head.weight' differs from 'embedding.weight'"):
        layout.views(differing)
    with pytest.raises(ValueError, match=r"'head.weight' and 'embedding.weight' are one array"):
        ParameterLayout.from_arrays(ArrayRecord(differing), None, tied_names(model))


CONSTANTS = {
    "mask": np.triu(np.full((2, 2), -np.inf, np.float32), 1),
    "rotary": np.exp(1j * np.arange(3)).astype(np.complex64),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_masks_of_infinity_and_complex_arrays_stay_as_they_were_sent(name):
    arrays = {"w": pack_array(np.ones(2, np.float32)), name: pack_array(CONSTANTS[name])}
    layout = ParameterLayout.from_arrays(ArrayRecord(arrays))
    vectors = layout.to_vectors(arrays)
    assert [spec.name for spec in layout.trainable] == ["w"]
    assert torch.equal(layout.named_buffers(vectors)[name], torch.from_numpy(CONSTANTS[name]))
    assert layout.to_arrays(vectors)[name].data == arrays[name].data
    for changed in (CONSTANTS[name] + 1, CONSTANTS[name][1:]):
        with pytest.raises(ReplyError, match=f"'{name}' is not as it was sent"):
            layout.views({**arrays, name: pack_array(changed)})


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([np.nan], np.float32), "'x' of the global model has NaN"),
        (np.array(["a"]), "'x' has dtype <U1; allowed: numbers"),
        (np.array([1], ">f4"), "'x' has dtype >f4; allowed: .* byte order"),
    ],
)
def test_a_global_model_without_meaning_is_refused(array, message):
    with pytest.raises(ValueError, match=message):
        ParameterLayout.from_arrays(ArrayRecord({"x": pack_array(array)}))


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
