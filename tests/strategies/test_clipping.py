"""``update-clipping``: one absurdly long update does not spoil the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower import FedAvg
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import Clip
from fedif_flower.strategies import Setup
from tests.strategies.hostile import Clients, step_reply
from tests.strategies.named import Spoiler, config, run


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


@pytest.mark.parametrize(("strategy", "multiple"), [("fedavg", 1.0)])
def test_learns_beside_a_client_that_sends_the_largest_values(tmp_path, strategy, multiple):
    settings = {"fraction-train": 1.0, "num-server-rounds": 6, "attack": "none"}
    spoiler = Spoiler({1: 9e14})
    off = config(tmp_path / "off", strategy, **settings, **{"update-clipping": 0.0})
    unclipped, _, _ = run(off, spoiler)
    clipped, model, _ = run(
        config(tmp_path / "on", strategy, **settings, **{"update-clipping": multiple}), spoiler
    )
    assert unclipped["test_accuracy"] < 0.3
    assert clipped["test_accuracy"] > 0.6
    assert all(torch.isfinite(value).all() for value in model.values())


def test_what_is_off_changes_no_result(tmp_path):
    settings = {"num-server-rounds": 1}
    untold, never = (
        run(config(tmp_path / name, "fedif", **settings, **{"update-clipping": multiple}))[1]
        for name, multiple in (("off", 0.0), ("far", 1e9))
    )
    assert all(bool((untold[name] == never[name]).all()) for name in untold)
