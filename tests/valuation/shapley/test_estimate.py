from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.valuation.shapley import ESTIMATORS, CoalitionMemo, Utility, exact_shapley


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
