from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from fedif_flower import AFedSV, FedIF, FedSV, LeaveOneOut, SFedAvg
from fedif_flower.errors import ConfigError
from fedif_flower.strategies.nodes import ClientNode
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.strategies.lines import Movers, Threshold, column, play, threshold_validation

BASE = {"fraction_evaluate": 0.0, "device": "cpu"}
STEPS = [[4.5], [2.5], [-3.7]]
# Shapley values of STEPS: u(a) = 1, u(b) = 1/2, u(ab) = 3/4, u(abc) = 1/4, otherwise 0.
SHAPLEY = [11 / 24, 5 / 24, -10 / 24]


def test_afedsv_by_hand():
    strategy = AFedSV(threshold_validation(), shapley_estimator="exact", **BASE)
    params, (report,) = play(strategy, Threshold(), Movers(STEPS))
    assert column(report, "score") == pytest.approx(SHAPLEY)
    normalized = [1.0, 15 / 21, 0.0]  # (5 + 10) / (11 + 10)
    assert column(report, "normalized") == pytest.approx(normalized)
    # Omega starts at 0.5; gamma is 0.3.
    omega = [0.7 * 0.5 + 0.3 * psi for psi in normalized]
    assert column(report, "contribution") == pytest.approx(omega)
    weights = [contribution / sum(omega) for contribution in omega]
    assert column(report, "weight") == pytest.approx(weights)
    expected = sum(weight * step for weight, (step,) in zip(weights, STEPS, strict=True))
    assert params.item() == pytest.approx(expected)
    assert column(report, "accumulative") == [None] * 3


def test_afedsv_smooths_over_rounds():
    strategy = AFedSV(threshold_validation(), shapley_estimator="exact", gamma=0.5, **BASE)
    _, reports = play(strategy, Threshold(), Movers(STEPS), rounds=2)
    first, second = (column(report, "contribution") for report in reports)
    psi = column(reports[1], "normalized")
    assert second == pytest.approx([(a + b) / 2 for a, b in zip(first, psi, strict=True)])


def test_afedsv_population_weights_by_hand():
    # K = 6: three clients are never seen and count as 0.5 each.
    strategy = AFedSV(
        threshold_validation(),
        shapley_estimator="exact",
        weight_scope="population",
        num_clients=6,
        **BASE,
    )
    _, (report,) = play(strategy, Threshold(), Movers(STEPS))
    omega = [0.65, 0.35 + 0.3 * 15 / 21, 0.35]
    total = sum(omega) + 3 * 0.5
    assert column(report, "weight") == pytest.approx([o / total * 6 / 3 for o in omega])


def test_evaluation_counts_reach_the_report():
    movers = Movers([[step] for step in torch.linspace(-2.0, 6.0, 10).tolist()])

    def evaluations(strategy) -> int:
        _, (report,) = play(strategy, Threshold(), movers)
        return report.evaluations

    assert evaluations(AFedSV(threshold_validation(), shapley_estimator="exact", **BASE)) == 1024
    assert 300 < evaluations(AFedSV(threshold_validation(), **BASE)) < 600
    assert evaluations(LeaveOneOut(threshold_validation(), **BASE)) == 11
    assert evaluations(FedIF(threshold_validation(), **BASE)) == 1


def test_afedsv_and_fedif_differ_in_valuation_and_start_alone():
    afedsv, fedif = (kind(threshold_validation(), **BASE) for kind in (AFedSV, FedIF))
    assert isinstance(afedsv.valuation, ShapleyValuation)
    same = ("round_normalization", "weight_scope", "num_clients", "trainable_keys", "seed")
    assert [getattr(afedsv, name) for name in same] == [getattr(fedif, name) for name in same]
    assert (afedsv.ledger.gamma, fedif.ledger.gamma) == (0.3, 0.3)
    assert (afedsv.ledger.initial, fedif.ledger.initial) == (0.5, 0.0)


def test_fedsv_weighs_by_the_rounds_own_values():
    strategy = FedSV(threshold_validation(), shapley_estimator="exact", **BASE)
    _, reports = play(strategy, Threshold(), Movers(STEPS), rounds=2)
    assert column(reports[0], "weight") == pytest.approx([21 / 36, 15 / 36, 0.0])
    for report in reports:
        normalized = column(report, "normalized")
        assert column(report, "contribution") == normalized
        assert column(report, "weight") == pytest.approx([n / sum(normalized) for n in normalized])


def test_leave_one_out_by_hand():
    # u(N) = 1/4: without a 0 is left, without b 0, without c 3/4.
    _, (report,) = play(LeaveOneOut(threshold_validation(), **BASE), Threshold(), Movers(STEPS))
    assert column(report, "score") == pytest.approx([1 / 4, 1 / 4, -1 / 2])
    assert column(report, "contribution") == pytest.approx([0.3, 0.3, 0.0])
    assert column(report, "weight") == pytest.approx([0.5, 0.5, 0.0])


def test_s_fedavg_averages_by_examples_and_remembers_relevance():
    strategy = SFedAvg(threshold_validation(), shapley_estimator="exact", **BASE)
    movers = Movers(STEPS, examples=[10, 20, 30])
    params, (report,) = play(strategy, Threshold(), movers)
    assert column(report, "weight") == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert params.item() == pytest.approx((4.5 + 2 * 2.5 - 3 * 3.7) / 6, abs=1e-6)
    # phi starts at 1/3 and keeps 0.75 of it.
    expected = [0.75 / 3 + 0.25 * value for value in SHAPLEY]
    assert column(report, "contribution") == pytest.approx(expected)
    assert report.evaluations == 8


def test_s_fedavg_draws_by_relevance():
    nodes = [ClientNode(partition_id, 1000 + partition_id) for partition_id in range(3)]
    strategy = SFedAvg(
        threshold_validation(), alpha=0.0, fraction_train=0.4, min_train_nodes=1, **BASE
    )
    strategy.select(nodes, 1)
    assert strategy.ledger.initial == pytest.approx(1 / 3)
    # e^phi = 6 : 3 : 1 for the third client, which was never drawn.
    ids = [1000, 1001]
    strategy.ledger.update(ids, 1 / 3 + torch.tensor([math.log(6), math.log(3)]).double())
    drawn = Counter(
        node.partition_id
        for server_round in range(2, 1002)
        for node in strategy.select(nodes, server_round)
    )
    for partition_id, share in enumerate((0.6, 0.3, 0.1)):
        # Five standard deviations of 1,000 draws.
        spread = 5 * math.sqrt(share * (1 - share) * 1000)
        assert drawn[partition_id] == pytest.approx(1000 * share, abs=spread)


def test_s_fedavg_remembers_relevance_over_a_restart():
    first, second = (
        SFedAvg(threshold_validation(), shapley_estimator="exact", **BASE) for _ in range(2)
    )
    play(first, Threshold(), Movers(STEPS))
    second.load_state_dict(first.state_dict())
    nodes = [ClientNode(partition_id, 1000 + partition_id) for partition_id in range(9)]
    for strategy in (first, second):
        strategy.fraction_train, strategy.min_train_nodes = 0.5, 1
    assert [first.select(nodes, r) for r in range(2, 9)] == [
        second.select(nodes, r) for r in range(2, 9)
    ]


@pytest.mark.parametrize("kind", [AFedSV, FedSV, SFedAvg])
def test_unknown_settings_are_named(kind):
    with pytest.raises(ConfigError, match="shapley-estimator = 'guess'"):
        kind(threshold_validation(), shapley_estimator="guess")
