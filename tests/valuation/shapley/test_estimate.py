from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.valuation.shapley import ESTIMATORS, CoalitionMemo, Utility, exact_shapley
from fedif_flower.valuation.shapley.estimate import random_permutations


def size_squared(masks: Tensor) -> Tensor:
    return masks.sum(dim=1) ** 2


class Recorder:
    """A utility that keeps what it was asked."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    def __call__(self, masks: Tensor) -> Tensor:
        self.batches.append(masks.long().tolist())
        return size_squared(masks)


def test_memo_passes_each_distinct_row_on_once_in_one_batch() -> None:
    recorder = Recorder()
    memo = CoalitionMemo(recorder)
    rows = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1]]).bool()
    assert memo(rows).tolist() == [4.0, 0.0, 4.0, 9.0]
    assert memo(rows[:3]).tolist() == [4.0, 0.0, 4.0]
    assert memo(torch.tensor([[True, True, True], [False, True, False]])).tolist() == [9.0, 1.0]
    assert recorder.batches == [[[1, 0, 1], [0, 0, 0], [1, 1, 1]], [[0, 1, 0]]]
    assert memo.evaluations == 4
    assert memo.asked == 7  # two of the nine rows were empty


def test_memo_tells_coalitions_of_many_clients_apart() -> None:
    memo = CoalitionMemo(lambda masks: (masks.double() * torch.arange(100.0)).sum(dim=1))
    singles = torch.eye(100, dtype=torch.bool)
    assert memo(singles).tolist() == list(range(100))
    assert memo.evaluations == 100


def test_memo_answers_in_float64_whatever_the_utility_answers() -> None:
    memo = CoalitionMemo(lambda masks: masks.any(dim=1))
    answer = memo(torch.tensor([[True, False], [False, False]]))
    assert answer.dtype == torch.float64
    assert answer.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("utility", "message"),
    [
        (lambda masks: masks.sum(dim=1, keepdim=True), r"shape \[4, 1\] for 4 coalitions"),
        (lambda masks: torch.tensor(1.0), r"shape \[\] for 4"),
        (lambda masks: [0.0] * len(masks), "returned list, not a Tensor"),
        (lambda masks: size_squared(masks).to(torch.complex64), "complex64"),
        (
            lambda masks: torch.where(masks[:, 0] & masks[:, 1], torch.nan, 1.0),
            r"nan for the coalition of clients \[0, 1\]",
        ),
        (lambda masks: size_squared(masks) / 0.0, r"clients \["),
    ],
)
def test_a_utility_that_answers_nonsense_is_named(utility: Utility, message: str) -> None:
    with pytest.raises(ValuationError, match=message):
        exact_shapley(utility, 2)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_checks_its_utility(name: str) -> None:
    with pytest.raises(ValuationError, match="nan for the coalition of clients"):
        ESTIMATORS[name](
            lambda masks: torch.full((len(masks),), torch.nan),
            3,
            num_samples=4,
            generator=torch.Generator(),
        )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_refuses_no_clients(name: str) -> None:
    with pytest.raises(ValuationError, match="num_clients is 0; allowed: >= 1"):
        ESTIMATORS[name](size_squared, 0, num_samples=4, generator=torch.Generator())


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"exact", "leave-one-out"}))
def test_every_sampling_estimator_refuses_no_samples(name: str) -> None:
    with pytest.raises(ValuationError, match=r"(num|max)_\w+ is 0; allowed: >= 1"):
        ESTIMATORS[name](size_squared, 3, num_samples=0, generator=torch.Generator())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_single_client_gets_everything(name: str) -> None:
    estimate = ESTIMATORS[name](
        lambda masks: 2.0 + 3.0 * masks[:, 0], 1, num_samples=2, generator=torch.Generator()
    )
    assert estimate.values.tolist() == [3.0]
    assert estimate.values.dtype == torch.float64
    assert estimate.evaluations == 2


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    table = torch.rand(2**5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def run() -> list[float]:
        return (
            ESTIMATORS[name](
                lambda masks: table[masks.long() @ 2 ** torch.arange(5)],
                5,
                num_samples=7,
                generator=torch.Generator().manual_seed(2),
            )
        ).values.tolist()

    assert run() == run()


def test_random_permutations_are_permutations_and_uniform() -> None:
    orders = random_permutations(6000, 3, torch.Generator().manual_seed(0))
    assert orders.sort(dim=1).values.unique(dim=0).tolist() == [[0, 1, 2]]
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    # Binomial(6000, 1/6) has a standard deviation of 28.9.
    assert (counts - 1000).abs().max() < 5 * 28.9
