from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower.messages.models import load_arrays, model_arrays, tensor_arrays


def batch_norm_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_load_arrays_of_another_model_is_a_clear_error():
    with pytest.raises(ValueError, match=r"(?s)is not the server's: .*0.weight"):
        load_arrays(
            nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), model_arrays(batch_norm_model())
        )
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
