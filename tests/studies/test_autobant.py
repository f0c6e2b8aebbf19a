from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedif_flower import Validation
from fedif_flower.strategies import Setup
from fedif_studies.autobant import AutoBant, TrialSettings
from tests.strategies.lines import Movers, column, play, point
from tests.strategies.test_influence_descent import bowl

BASE = {"fraction_evaluate": 0.0, "stages": (), "setup": Setup(device="cpu")}
MOVERS = Movers([[1.0, 0.0], [0.0, 1.0]], examples=[10, 30])


def test_one_mirror_step_by_hand():
    strategy = AutoBant(bowl(), trial=TrialSettings(steps=2, momentum=1.0), **BASE)
    params, (report,) = play(strategy, point(), MOVERS)
    # At (1/2, 1/2), whatever examples they claim: gradient (-1/2, 1/2), so the odds become e.
    weight = math.e / (1 + math.e)
    assert column(report, "weight") == pytest.approx([weight, 1 - weight])
    assert params.tolist() == pytest.approx([weight, 1 - weight])
    assert report.evaluations == 2


def test_a_weight_below_half_an_equal_share_is_cut_off_and_not_made_up_for():
    strategy = AutoBant(bowl(), trial=TrialSettings(steps=3, momentum=1.0), **BASE)
    params, (report,) = play(strategy, point(), MOVERS)
    # The gradient at the first step's end is (-q, q) with q = 1 / (1 + e); the odds end above 4.
    weight = 1 / (1 + math.exp(-1 - 2 / (1 + math.e)))
    assert weight > 0.75
    assert column(report, "weight") == pytest.approx([weight, 0.0])
    assert params.tolist() == pytest.approx([weight, 0.0])


def test_a_step_looks_at_a_batch_of_the_trial_examples():
    """Each example wants another point; the loss that a step sees is that of its batch."""
    inputs, targets = torch.ones(40, 1), torch.arange(40.0)[:, None]
    model = nn.Linear(1, 1, bias=False)
    held_out = Validation(model, inputs, targets, loss_fn=nn.functional.mse_loss, device="cpu")

    def weights(**settings) -> list[float]:
        start = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(start.weight)
        trial = TrialSettings(steps=4, step_size=0.01, least=0.0, **settings)
        _, reports = play(AutoBant(held_out, trial=trial, **BASE), start, Movers([[0.0], [40.0]]))
        return column(reports[0], "weight")

    assert weights(batch=1) == weights(batch=1)
    assert weights(batch=40) == weights(batch=99) == weights(batch=40, examples=0)
    assert weights(batch=1) != weights(batch=40)
    assert weights(batch=40, examples=1) != weights(batch=40)
