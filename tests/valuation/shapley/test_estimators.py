"""Each estimator on games small enough for the exact values to be at hand."""

from __future__ import annotations

from collections.abc import Callable

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
    owen_shapley,
    permutation_shapley,
)
from fedif_flower.valuation.shapley.permutation import random_permutations

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


def never_truncated_gtg(num_samples: int, generator: Generator) -> Tensor:
    return gtg_shapley(
        random_game,
        M,
        round_truncation=0.0,
        truncation=0.0,
        tolerance=0.0,
        num_samples=num_samples,
        generator=generator,
    )


SAMPLERS: dict[str, Callable[[int, Generator], Tensor]] = {
    "permutation": lambda n, g: permutation_shapley(random_game, M, num_samples=n, generator=g),
    "complementary": lambda n, g: complementary_shapley(random_game, M, num_samples=n, generator=g),
    "gtg": never_truncated_gtg,
    "owen": lambda n, g: owen_shapley(random_game, M, num_samples=n, generator=g),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_estimates_converge_to_the_exact_values(name: str) -> None:
    exact = exact_shapley(random_game, M)
    few, many, repeats = 56, 56 * 64, 100
    generator = Generator().manual_seed(11)
    runs = torch.stack([SAMPLERS[name](few, generator) for _ in range(repeats)])
    spread = runs.std(dim=0)
    # Unbiased: the mean of the runs lies within five of its own standard errors.
    assert ((runs.mean(dim=0) - exact).abs() <= 5 * spread / repeats**0.5).all()
    # Converging: 64 times the samples, an eighth of the spread.
    error = (SAMPLERS[name](many, generator) - exact).abs()
    assert (error <= 5 * spread / 8).all()


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"complementary"}))
def test_additive_games_are_valued_without_error(name: str) -> None:
    worth = [0.5, -1.0, 0.0, 2.0]
    values = ESTIMATORS[name](
        additive_game(worth), 4, num_samples=3, generator=Generator().manual_seed(0)
    )
    torch.testing.assert_close(values, torch.tensor(worth, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("complementary", 5 * 2 * M),
        ("exact", 2**M),
        ("leave-one-out", M + 1),
        ("permutation", 5 * (M + 1)),
    ],
)
def test_all_coalitions_are_asked_for_in_one_call(name: str, asked: int) -> None:
    counter = Counter(random_game)
    ESTIMATORS[name](counter, M, num_samples=5, generator=Generator().manual_seed(3))
    assert counter.asked == [asked]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_single_client_gets_everything(name: str) -> None:
    values = ESTIMATORS[name](
        lambda masks: 2.0 + 3.0 * masks[:, 0], 1, num_samples=2, generator=Generator()
    )
    assert values.tolist() == [3.0]
    assert values.dtype == torch.float64


def test_a_memo_passes_each_distinct_row_on_once_in_one_batch() -> None:
    counter = Counter(additive_game([1.0, 2.0, 4.0]))
    memo = CoalitionMemo(counter)
    rows = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1]]).bool()
    assert memo(rows).tolist() == [5.0, 0.0, 5.0, 7.0]
    assert memo(rows[:3]).tolist() == [5.0, 0.0, 5.0]
    assert memo(torch.tensor([[True, True, True], [False, True, False]])).tolist() == [7.0, 2.0]
    assert counter.asked == [3, 1]
    assert memo.evaluations == 4


def test_a_utility_that_answers_nonsense_is_named() -> None:
    memo = CoalitionMemo(lambda masks: torch.where(masks[:, 0] & masks[:, 1], torch.nan, 1.0))
    with pytest.raises(ValuationError, match=r"nan for the coalition of clients \[0, 1\]"):
        exact_shapley(memo, 2)


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


def test_permutation_by_hand() -> None:
    # Gloves: client 0 is worth 1 unless it comes first; then whoever comes second is.
    orders = random_permutations(4, 3, Generator().manual_seed(9))
    expected = torch.zeros(3, dtype=torch.float64)
    for order in orders.tolist():
        expected[order[1] if order[0] == 0 else 0] += 0.25
    values = permutation_shapley(
        lambda masks: masks[:, 0] & masks[:, 1:].any(dim=1),
        3,
        num_samples=4,
        generator=Generator().manual_seed(9),
    )
    assert values.tolist() == expected.tolist()
    assert float(values.sum()) == 1.0


def test_gtg_skips_a_round_that_changes_nothing() -> None:
    counter = Counter(lambda masks: 0.01 * masks.all(dim=1))
    assert gtg_shapley(counter, M, generator=Generator()).tolist() == [0.0] * M
    assert counter.asked == [2]


def test_gtg_stops_at_the_first_sweep_after_enough_orders() -> None:
    # In an additive game the means never move. Sweeps of 4 orders: 32 is the first beyond 30.
    counter = Counter(additive_game([0.4, 0.3, 0.2, 0.1]))
    gtg_shapley(counter, 4, truncation=0.0, generator=Generator().manual_seed(0))
    assert counter.asked == [2] + 8 * [4 * 5]


def test_gtg_lets_each_client_lead_once_per_sweep() -> None:
    # Whoever comes first takes all: one sweep gives each the same, whatever the orders.
    values = gtg_shapley(
        lambda masks: masks.any(dim=1), 5, num_samples=1, generator=Generator().manual_seed(0)
    )
    torch.testing.assert_close(values, torch.full((5,), 0.2, dtype=torch.float64))


def test_leave_one_out_by_hand() -> None:
    # u = product of the sizes of two teams {0, 1} and {2, 3, 4}: 6; without 0: 3; without 2: 4.
    values = leave_one_out(lambda masks: masks[:, :2].sum(dim=1) * masks[:, 2:].sum(dim=1), 5)
    assert values.tolist() == [3.0, 3.0, 2.0, 2.0, 2.0]
