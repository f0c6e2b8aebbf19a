from __future__ import annotations

import sys

import pytest
import torch

from fedif_flower.aggregators import (
    centred_clipping,
    coordinate_median,
    geometric_median_weights,
    krum_weights,
    neighbour_mixing,
    trimmed_mean,
)
from fedif_flower.attacks.alie import Alie
from fedif_flower.attacks.ipm import InnerProductManipulation
from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.strategies import ByzFL, RobustRule, Setup
from fedif_flower.strategies.registry import STRATEGIES
from tests.strategies.lines import Movers, play, point

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}
UPDATES = torch.randn(9, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CENTRE = torch.zeros(40, dtype=torch.float64)


def test_without_byzfl_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "byzfl.aggregators.aggregators", None)
    with pytest.raises(ConfigError, match=r"'byzfl:Median' needs ByzFL .*fedif-flower\[byzfl\]"):
        RobustRule(ByzFL("Median"), **BASE)


def test_a_run_may_name_a_rule():
    assert "byzfl:NNM+GeometricMedian" in STRATEGIES
    assert "byzflMedian" not in STRATEGIES
    assert not any(name.startswith("byzfl:") for name in STRATEGIES)
    config = RunConfig.from_run_config(default_run_config() | {"strategy": "byzfl:NNM+TrMean"})
    assert config.update_clipping == 0
    assert "median of all" not in STRATEGIES


def test_a_rule_that_byzfl_lacks_is_named_with_those_it_has():
    pytest.importorskip("byzfl")
    with pytest.raises(ConfigError, match=r"no 'Mode' there; it has .*TrMean"):
        RobustRule(ByzFL("NNM+Mode"), **BASE)
    with pytest.raises(ConfigError, match=r"no 'Median' there; it has .*NNM"):
        RobustRule(ByzFL("Median+TrMean"), **BASE)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("Average", UPDATES.mean(dim=0)),
        ("Median", coordinate_median(UPDATES)),
        ("TrMean", trimmed_mean(UPDATES, 2)),
        ("Krum", krum_weights(UPDATES, 2) @ UPDATES),
        ("NNM+TrMean", trimmed_mean(neighbour_mixing(UPDATES, 2) @ UPDATES, 2)),
        ("CenteredClipping", centred_clipping(UPDATES, CENTRE, radius=100.0, iterations=1)),
    ],
)
def test_rules_of_both_packages_agree(rule, expected):
    pytest.importorskip("byzfl")
    strategy = RobustRule(ByzFL(rule, malicious_fraction=0.2), **BASE)  # f = 2 of 9
    steps = [own.tolist() for own in UPDATES.float()]
    model = torch.nn.Linear(40, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    params, _ = play(strategy, model, Movers(steps))
    assert torch.allclose(params, expected.float(), rtol=1e-4, atol=1e-5)


def test_geometric_medians_end_in_one_point():
    """After a few steps they differ: ByzFL begins at the received model, RFA at the mean."""
    byzfl = pytest.importorskip("byzfl")
    weights = geometric_median_weights(UPDATES, torch.ones(9), iterations=50, nu=0.1)
    found = byzfl.GeometricMedian(nu=0.1, T=50)(UPDATES).to(UPDATES)
    assert torch.allclose(weights @ UPDATES, found, atol=1e-6)


def test_attacks_of_both_packages_agree():
    byzfl = pytest.importorskip("byzfl")
    # ByzFL adds where the paper subtracts, and takes the unbiased deviation. It answers in float32.
    biased = (len(UPDATES) / (len(UPDATES) - 1)) ** 0.5
    sent = Alie(0.2, z=-1.5 * biased).collude(CENTRE, UPDATES, torch.Generator())[0]
    found = byzfl.ALittleIsEnough(tau=1.5)(UPDATES)
    assert torch.allclose(sent.float(), found.float(), atol=1e-6)
    sent = InnerProductManipulation(3.0).collude(CENTRE, UPDATES, torch.Generator())[0]
    found = byzfl.InnerProductManipulation(tau=3.0)(UPDATES)
    assert torch.allclose(sent.float(), found.float(), atol=1e-6)


def test_one_client_is_followed():
    pytest.importorskip("byzfl")
    params, _ = play(
        RobustRule(ByzFL("Krum", malicious_fraction=1.0), **BASE),
        point(),
        Movers([[1.0, 2.0], [1.0, 2.0]]),
    )
    assert params.tolist() == [1, 2]
