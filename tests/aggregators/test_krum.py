from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum

from fedif_flower.aggregators import Krum
from fedif_flower.aggregators.krum import krum_scores
from tests.rounds import a_round

LINE = torch.tensor([[0.0], [1.0], [3.0], [10.0]])


@pytest.mark.parametrize(
    ("updates", "num_malicious", "expected"),
    [
        (LINE, 0, [1 + 9, 1 + 4, 4 + 9, 49 + 81]),  # m - f - 2 = 2 neighbours
        (LINE, 1, [1, 1, 4, 49]),
        (LINE, 3, [1, 1, 4, 49]),  # never fewer than one neighbour
        (LINE[:2], 0, [1, 1]),
        (LINE[:1], 0, [0]),
    ],
)
def test_scores_on_a_line(updates, num_malicious, expected):
    assert krum_scores(updates, num_malicious).tolist() == expected


@pytest.mark.parametrize(
    ("malicious", "selected", "weights"),
    [
        (0.0, 1, [0, 1, 0, 0]),
        (0.0, 2, [0.5, 0.5, 0, 0]),
        (0.0, 9, [0.25] * 4),
        (0.25, 1, [1, 0, 0, 0]),  # Of equal scores the first is taken.
    ],
)
def test_weights_take_the_best_alone_or_the_best_few(malicious, selected, weights):
    assert Krum(malicious, selected)(a_round(LINE)).weights.tolist() == weights


@pytest.mark.parametrize(("num_malicious", "num_selected"), [(0, 1), (2, 1), (3, 4)])
def test_chooses_as_flower_does(num_malicious, num_selected):
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        updates = torch.randn(9, 6, generator=generator)
        contents = [RecordDict({"arrays": ArrayRecord([row.numpy()])}) for row in updates]
        chosen = select_multikrum(contents, num_malicious, num_selected)
        weights = Krum(num_malicious / 9, num_selected)(a_round(updates)).weights
        theirs = [any(content is one for one in chosen) for content in contents]
        assert (weights > 0).tolist() == theirs
