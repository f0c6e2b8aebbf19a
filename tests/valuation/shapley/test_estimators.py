"""Each estimator on games small enough for the exact values to be at hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Generator, Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.valuation.shapley import (
    ESTIMATORS,
    CoalitionMemo,
    Utility,
    complementary_shapley,
    exact_shapley,
    gtg_shapley,
    leave_one_out,
)

M = 7
TABLE = torch.rand(2**M, generator=Generator().manual_seed(5), dtype=torch.float64)


def random_game(masks: Tensor) -> Tensor:
    return TABLE[masks.long() @ 2 ** torch.arange(M)]


def additive_game(worth: list[float]) -> Utility:
    return lambda masks: masks.double() @ torch.tensor(worth, dtype=torch.float64)


class Counter:
    """A utility that counts what it is asked."""

    def __init__(self, utility: Utility) -> None:
        self.utility = utility
        self.asked: list[int] = []

    def __call__(self, masks: Tensor) -> Tensor:
        self.asked.append(len(masks))
        return self.utility(masks)


never = {"round_truncation": 0.0, "truncation": 0.0, "tolerance": 0.0}
SAMPLERS = {**ESTIMATORS, "gtg": partial(gtg_shapley, **never)}


@pytest.mark.parametrize("name", ["permutation", "complementary", "gtg", "owen"])
def test_estimates_converge_to_the_exact_values(name: str) -> None:
    exact = exact_shapley(random_game, M)
    few, many, repeats = 56, 56 * 64, 100
    generator = Generator().manual_seed(11)

    def estimate(samples: int) -> Tensor:
        return SAMPLERS[name](random_game, M, num_samples=samples, generator=generator)

    runs = torch.stack([estimate(few) for _ in range(repeats)])
    spread = runs.std(dim=0)
    # Unbiased: the mean of the runs lies within five of its own standard errors.
    assert ((runs.mean(dim=0) - exact).abs() <= 5 * spread / repeats**0.5).all()
    # Converging: 64 times the samples, an eighth of the spread.
    assert ((estimate(many) - exact).abs() <= 5 * spread / 8).all()


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"complementary"}))
def test_additive_games_are_valued_without_error(name: str) -> None:
    worth = [0.5, -1.0, 0.0, 2.0]
    values = ESTIMATORS[name](
        additive_game(worth), 4, num_samples=3, generator=Generator().manual_seed(0)
    )
    torch.testing.assert_close(values, torch.tensor(worth, dtype=torch.float64))


def test_a_memo_passes_each_distinct_row_on_once_in_one_batch() -> None:
    counter = Counter(additive_game([1.0, 2.0, 4.0]))
    memo = CoalitionMemo(counter)
    rows = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1]]).bool()
    assert memo(rows).tolist() == [5.0, 0.0, 5.0, 7.0]
    assert memo(rows[:3]).tolist() == [5.0, 0.0, 5.0]
    assert memo(torch.tensor([[True, True, True], [False, True, False]])).tolist() == [7.0, 2.0]
    assert counter.asked == [3, 1]
    assert memo.evaluations == 4
    nonsense = CoalitionMemo(lambda masks: torch.where(masks[:, 0] & masks[:, 1], torch.nan, 1.0))
    with pytest.raises(ValuationError, match=r"nan for the coalition of clients \[0, 1\]"):
        exact_shapley(nonsense, 2)


def test_complementary_by_hand() -> None:
    # u: empty 0, {0} 1, {1} 2, both 4. Size 1: -1 for client 0, +1 for client 1; size 2: 4 each.
    table = torch.tensor([0.0, 1.0, 2.0, 4.0])
    values = complementary_shapley(
        lambda masks: table[masks.long() @ torch.tensor([1, 2])],
        2,
        num_samples=1,
        generator=Generator(),
    )
    assert values.tolist() == [1.5, 2.5]


def test_gtg_skips_a_round_that_changes_nothing_and_stops_after_enough_orders() -> None:
    counter = Counter(lambda masks: 0.01 * masks.all(dim=1))
    assert gtg_shapley(counter, M, generator=Generator()).tolist() == [0.0] * M
    assert counter.asked == [2]
    # In an additive game the means never move. Sweeps of 4 orders: 32 is the first beyond 30.
    counter = Counter(additive_game([0.4, 0.3, 0.2, 0.1]))
    gtg_shapley(counter, 4, truncation=0.0, generator=Generator().manual_seed(0))
    assert counter.asked == [2] + 8 * [4 * 5]


def test_leave_one_out_by_hand() -> None:
    # u = product of the sizes of two teams {0, 1} and {2, 3, 4}: 6; without 0: 3; without 2: 4.
    values = leave_one_out(lambda masks: masks[:, :2].sum(dim=1) * masks[:, 2:].sum(dim=1), 5)
    assert values.tolist() == [3.0, 3.0, 2.0, 2.0, 2.0]
