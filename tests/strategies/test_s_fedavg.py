from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from fedif_flower import SFedAvg
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.strategies import Setup
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.strategies.lines import (
    SHAPLEY,
    STEPS,
    Movers,
    Threshold,
    column,
    play,
    threshold_validation,
)

BASE = {"fraction_evaluate": 0.0, "stages": (), "setup": Setup(device="cpu")}


def test_s_fedavg_averages_by_examples_and_remembers_relevance():
    strategy = SFedAvg(ShapleyValuation(threshold_validation(), estimator="exact"), **BASE)
    movers = Movers(STEPS, examples=[10, 20, 30])
    params, (report,) = play(strategy, Threshold(), movers)
    assert column(report, "weight") == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert params.item() == pytest.approx((4.5 + 2 * 2.5 - 3 * 3.7) / 6, abs=1e-6)
    # phi starts at 1/3 and keeps 0.75 of it.
    expected = [0.75 / 3 + 0.25 * value for value in SHAPLEY]
    assert column(report, "weight_score") == pytest.approx(expected)
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
