"""AutoBANT and the oracle, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedif_flower import Validation
from fedif_flower.errors import ValuationError
from fedif_flower.run.ending import require_complete
from fedif_flower.run.rows import read_rows
from fedif_flower.strategies import Setup
from fedif_studies.autobant import AutoBant, TrialSettings, auto_bant_weights
from fedif_studies.names import NAMES
from fedif_studies.oracle import OracleExclusion
from tests.strategies.lines import Movers, bowl, column, play, point
from tests.strategies.named import config, run

BASE = {"fraction_evaluate": 0.0, "stages": (), "setup": Setup(device="cpu")}
MOVERS = Movers([[1.0, 0.0], [0.0, 1.0]], examples=[10, 30])
# At (1/2, 1/2), whatever examples they claim: gradient (-1/2, 1/2), so the odds become e.
ONCE = math.e / (1 + math.e)
# There it is (-q, q) with q = 1 / (1 + e): the odds end above 4, and a fifth is cut off.
TWICE = 1 / (1 + math.exp(-1 - 2 / (1 + math.e)))


@pytest.mark.parametrize(
    ("steps", "weights"), [(2, [ONCE, 1 - ONCE]), (3, [TWICE, 0.0])], ids=["one", "two"]
)
def test_mirror_steps_by_hand(steps, weights):
    strategy = AutoBant(bowl(), trial=TrialSettings(steps=steps, momentum=1.0), **BASE)
    params, (report,) = play(strategy, point(), MOVERS)
    assert column(report, "weight") == pytest.approx(weights)
    assert params.tolist() == pytest.approx(weights)
    assert report.evaluations == steps


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_told_though_an_earlier_loss_was(wrong):
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    places = iter([(0.5, torch.ones(2)), (0.25, torch.tensor([wrong, 0.0]))])
    batches = [lambda params, weights: next(places)] * 2
    with pytest.raises(ValuationError, match="a gradient of the trial loss is not finite"):
        auto_bant_weights(torch.zeros(2), rows, batches)


def test_a_trial_loss_that_is_nowhere_finite_is_told():
    batches = [lambda params, weights: (math.inf, torch.ones(2))]
    with pytest.raises(ValuationError, match="finite at none of the weights"):
        auto_bant_weights(torch.zeros(2), torch.eye(2), batches)


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


def test_the_honest_by_their_examples():
    strategy = OracleExclusion(lambda node: node.node_id == 1001, **BASE)
    movers = Movers([[1.0, 0.0], [9.0, 9.0], [0.0, 1.0]], examples=[10, 50, 30])
    params, (report,) = play(strategy, point(), movers)
    assert column(report, "weight") == [0.25, 0.0, 0.75]
    assert params.tolist() == pytest.approx([0.25, 0.75])


def test_a_run_whose_rounds_rightly_give_nobody_weight_has_not_failed(tmp_path):
    chosen = config(tmp_path, NAMES["oracle"], **{"malicious-fraction": 1.0})
    summary, _, _ = run(chosen)
    require_complete(chosen.run_dir)
    rows = read_rows(chosen.run_dir / "rounds.csv")[1:]
    assert {(row["status"], row["round_failed"]) for row in rows} == {("kept", "0")}
    assert rows[-1]["reason"] == "every accepted update has weight 0"
    assert (summary["failed_rounds"], summary["kept_rounds"]) == (0, len(rows))
