from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower import ShapFed
from fedif_flower.errors import ConfigError
from fedif_flower.strategies import Setup
from tests.strategies.lines import Movers, column, play

BASE = {"fraction_evaluate": 0.0, "stages": (), "setup": Setup(device="cpu")}


def layers() -> nn.Module:
    """Ten parameters, of which 6 to 7 are the last layer's matrix; 8 to 9 come after it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False), nn.GroupNorm(1, 1))


def test_shapfed_looks_at_the_last_layer_alone():
    honest = [1.0] * 6 + [3.0, 4.0] + [1.0, 1.0]
    opposite_elsewhere = [-1.0] * 6 + [3.0, 4.0] + [-1.0, -1.0]
    opposite_there = [1.0] * 6 + [-3.0, -4.0] + [1.0, 1.0]
    movers = Movers([honest, opposite_elsewhere, opposite_there])
    _, (report,) = play(ShapFed(layers(), **BASE), layers(), movers)
    assert column(report, "score") == pytest.approx([1.0, 1.0, -1.0])
    assert column(report, "weight_score") == pytest.approx([0.5, 0.5, -0.5])
    assert column(report, "weight") == pytest.approx([0.5, 0.5, 0.0])


def test_shapfed_goes_by_trainable_layers():
    model = layers()
    model[1].requires_grad_(False)
    strategy = ShapFed(model, **BASE)
    # Now the first layer's matrix is the last one trained: entries 0 to 3, two classes.
    step = [1.0, 0.0, 0.0, 1.0]
    movers = Movers([step + [0.0] * 6, [-1.0, 0.0, 0.0, 1.0] + [0.0] * 6])
    _, (report,) = play(strategy, layers(), movers)
    # Class 0 cancels out, so neither agrees with it; class 1 has both.
    assert column(report, "score") == pytest.approx([0.5, 0.5])


def test_shapfed_needs_a_last_layer():
    with pytest.raises(ConfigError, match="no fully connected layer"):
        ShapFed(nn.Conv2d(1, 1, 3))
