"""FedIF on the loss (w - 5)^2 of one parameter w: going up from 0 helps, going down does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower import FedIF, Validation
from fedif_flower.messages import screening
from fedif_flower.strategies import Setup
from tests.strategies.lines import Movers, column, play


def line() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def fedif(**settings) -> FedIF:
    validation = Validation(
        line(),
        torch.ones(1, 1),
        torch.full((1, 1), 5.0),
        loss_fn=nn.functional.mse_loss,
        device="cpu",
    )
    return FedIF(validation, fraction_evaluate=0.0, setup=Setup(device="cpu"), **settings)


def test_prefers_the_client_that_goes_downhill():
    movers = Movers([[1.0], [-1.0], [3.0]], examples=[10, 20, 30])
    params, (report,) = play(fedif(gamma=0.3, stages=()), line(), movers)
    # Phi = 10, -10, 10 -> Psi = 1, 0, 1 -> Omega = .3, 0, .3 -> p = .5, 0, .5; steps 1 and 3.
    assert column(report, "score") == pytest.approx([10, -10, 10])
    assert column(report, "normalized") == [1, 0, 1]
    assert column(report, "weight_score") == pytest.approx([0.3, 0, 0.3])
    assert column(report, "weight") == pytest.approx([0.5, 0, 0.5])
    assert column(report, "accumulative_influence") == pytest.approx([10, -10, 30])
    assert params.item() == pytest.approx(2.0)


def test_updates_that_do_not_fit_into_memory_lie_in_a_file(monkeypatch):
    movers = [[1.0], [-1.0], [3.0]]
    in_memory, _ = play(fedif(), line(), Movers(movers), rounds=2)
    monkeypatch.setattr(screening, "SHARE_OF_MEMORY", 0.0)
    strategy = fedif()
    in_file, _ = play(strategy, line(), Movers(movers), rounds=2)
    assert strategy.workspace.updates.untyped_storage().filename is not None
    assert torch.equal(in_file, in_memory)
