"""``update-clipping``: one absurdly long update does not spoil the model."""

from __future__ import annotations

import pytest
from torch import nn

from fedif_flower import FedAvg
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import Clip
from fedif_flower.strategies import Setup
from tests.strategies.hostile import Clients, step_reply


def test_parameters_and_buffers_by_hand():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False))

    honest = {i: lambda message, _: step_reply(message, 1.0) for i in (0, 2, 3)}
    strategy = FedAvg(
        fraction_evaluate=0.0,
        stages=[Clip(2.0)],
        setup=Setup(trainable_keys=["0.weight", "0.bias"], device="cpu"),
    )
    arrays = model_arrays(model)
    before = {name: array.numpy().copy() for name, array in arrays.items()}
    grid = LocalGrid(Clients({**honest, 1: lambda message, _: step_reply(message, 1e5)}), 4)
    after = strategy.start(grid, arrays, num_rounds=1).arrays
    # Three clients add 1, the fourth what is left of 1e5: 2. Mean: 5 / 4.
    assert after["0.weight"].numpy() - before["0.weight"] == pytest.approx(1.25, rel=1e-5)
    # Statistics are bounded by the clients' spread before: three agree on 1.
    assert after["1.running_var"].numpy() - before["1.running_var"] == pytest.approx(1.0, rel=1e-5)
