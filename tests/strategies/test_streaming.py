"""Rounds that sum updates as they come: the models and records of stacked ones."""

from __future__ import annotations

import pytest
import torch

from fedif_flower import AFedSV, FedAvg, FedIF
from fedif_flower.errors import ConfigError
from fedif_flower.strategies import Setup
from tests.strategies.lines import Movers, Threshold, column, play, threshold_validation

MOVERS = Movers([[0.5], [-1.0], [2.0], [float("nan")]], examples=[10, 20, 30, 40])
KINDS = {
    "fedif": lambda **base: FedIF(threshold_validation(), stages=(), **base),
    "fedavg": FedAvg,
}


def streamed(kind, mode: str, rounds: int = 2):
    setup = Setup(device="cpu", aggregation=mode, max_examples_ratio=0)
    return play(kind(fraction_evaluate=0.0, setup=setup), Threshold(), MOVERS, rounds)


@pytest.mark.parametrize("name", KINDS)
def test_same_model_and_records_as_stacked(name):
    (params, told), (ours, found) = (streamed(KINDS[name], m) for m in ("stacked", "streaming"))
    torch.testing.assert_close(ours, params)
    for one, other in zip(told, found, strict=True):
        assert one.num_rejected == other.num_rejected == 1
        for figure in ("weight", "weight_score"):
            assert column(other, figure) == pytest.approx(column(one, figure))


def test_what_needs_all_updates_says_so_before_anybody_is_asked():
    with pytest.raises(ConfigError, match="'streaming': AFedSV weighs all updates at once"):
        streamed(lambda **base: AFedSV(threshold_validation(), **base), "streaming")
