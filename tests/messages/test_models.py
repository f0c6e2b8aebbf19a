from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower.messages.models import load_arrays, model_arrays


def batch_norm_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_load_arrays_of_another_model_is_a_clear_error():
    with pytest.raises(ValueError, match=r"'0.weight' has shape \[3, 2\].*\[4, 2\]"):
        load_arrays(
            nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), model_arrays(batch_norm_model())
        )
    with pytest.raises(ValueError, match="but the model has"):
        load_arrays(nn.Linear(2, 3), model_arrays(batch_norm_model()))


def test_load_arrays():
    model, other = batch_norm_model(), batch_norm_model()
    load_arrays(other, model_arrays(model))
    for key, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[key], value)
