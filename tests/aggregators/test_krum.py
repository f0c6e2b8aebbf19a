from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators import krum_scores, krum_weights, select_lowest

LINE = torch.tensor([[0.0], [1.0], [3.0], [10.0]])


@pytest.mark.parametrize(
    ("num_malicious", "expected"),
    [
        (0, [1 + 9, 1 + 4, 4 + 9, 49 + 81]),  # m - f - 2 = 2 neighbours
        (1, [1, 1, 4, 49]),
        (3, [1, 1, 4, 49]),  # never fewer than one neighbour
    ],
)
def test_scores_on_a_line(num_malicious: int, expected: list[float]) -> None:
    assert krum_scores(LINE, num_malicious).tolist() == expected


def test_weights_take_the_best_alone_or_the_best_few() -> None:
    assert krum_weights(LINE, 0).tolist() == [0, 1, 0, 0]
    assert krum_weights(LINE, 0, num_selected=2).tolist() == [0.5, 0.5, 0, 0]
    assert krum_weights(LINE, 0, num_selected=4).tolist() == [0.25] * 4


def test_of_equal_scores_the_first_is_taken() -> None:
    assert krum_weights(LINE, 1).tolist() == [1, 0, 0, 0]
    assert select_lowest(torch.zeros(50)).tolist() == [1.0] + [0.0] * 49


@pytest.mark.parametrize("m", [1, 2])
def test_too_few_clients_for_any_neighbourhood(m: int) -> None:
    updates = torch.arange(m)[:, None].float()
    assert krum_scores(updates, 0).tolist() == [float(m - 1)] * m
    assert krum_weights(updates, 0).tolist() == [1.0] + [0.0] * (m - 1)


def test_huge_attackers_do_not_disturb_the_choice() -> None:
    attackers = torch.tensor([[3e38], [-3e38]])
    weights = krum_weights(torch.cat([attackers, LINE]), 2)  # two neighbours
    assert weights.tolist() == [0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(("num_malicious", "num_selected"), [(0, 1), (2, 1), (3, 4)])
def test_chooses_as_flower_does(num_malicious: int, num_selected: int) -> None:
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        updates = torch.randn(9, 6, generator=generator)
        contents = [
            RecordDict({"arrays": ArrayRecord([row[:4].view(2, 2).numpy(), row[4:].numpy()])})
            for row in updates
        ]
        chosen = select_multikrum(contents, num_malicious, num_selected)
        weights = krum_weights(updates, num_malicious, num_selected)
        theirs = [any(content is one for one in chosen) for content in contents]
        assert (weights > 0).tolist() == theirs


@given(st.data())
def test_permutation_equivariance(data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 6))
    row = st.lists(st.integers(-50, 50), min_size=3, max_size=3)
    updates = torch.tensor(data.draw(st.lists(row, min_size=m, max_size=m))).float()
    order = data.draw(st.permutations(range(m)))
    num_malicious = data.draw(st.integers(0, m))
    scores = krum_scores(updates, num_malicious)
    torch.testing.assert_close(krum_scores(updates[order], num_malicious), scores[order])
