from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.valuation import Validation
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.rounds import a_round


class Threshold(nn.Module):
    """Says class 1 where weight * x + shift > 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(inputs), self.weight * inputs + self.shift], dim=1)


def validation() -> Validation:
    # Right about the k-th input once the weight exceeds k = 1, 2, 3, 4.
    inputs = torch.tensor([[1.0], [1 / 2], [1 / 3], [1 / 4]])
    return Validation(Threshold(), inputs, torch.ones(4, dtype=torch.int64), device="cpu")


class Shift:
    """One buffer, called shift."""

    def named_buffers(self, vectors: ModelVectors) -> Mapping[str, Tensor]:
        return self.split_buffers(vectors.buffers)

    def split_buffers(self, buffers: Tensor) -> Mapping[str, Tensor]:
        return {"shift": buffers}


def round_of(*steps: float, server_round: int = 1, shifts: Tensor | None = None) -> RoundUpdates:
    shifted = torch.zeros(len(steps)) if shifts is None else shifts
    return a_round(
        torch.tensor(steps)[:, None],
        server_round=server_round,
        model=ModelVectors(torch.zeros(1), torch.zeros(1)),
        buffer_updates=shifted[:, None],
        names=Shift(),
    )


def test_exact_values_by_hand():
    # u: a 1, b 1/2, c 0, ab (3.5) 3/4, ac (0.4) 0, bc (-0.6) 0, abc (1.1) 1/4, nobody 0.
    # a: 1/3 * 1 + 1/6 * (3/4 - 1/2) + 1/6 * 0 + 1/3 * 1/4; b and c alike.
    scores = ShapleyValuation(validation(), estimator="exact").score(round_of(4.5, 2.5, -3.7))
    expected = torch.tensor([11 / 24, 5 / 24, -10 / 24], dtype=torch.float64)
    torch.testing.assert_close(scores.values, expected)
    assert scores.evaluations == 8
    assert scores.influences is None


def test_buffers_are_averaged_too():
    # Nobody moves the weight; only a's shift of 2 makes a difference, and 2 / 2 is too little.
    updates = round_of(0.0, 0.0, shifts=torch.tensor([2.0, 0.0]))
    values = ShapleyValuation(validation(), estimator="exact").score(updates).values
    assert values.tolist() == [0.5, -0.5]


@pytest.mark.parametrize("estimator", ["complementary", "permutation", "owen"])
def test_draws_depend_on_seed_and_round_alone(estimator):
    def score(server_round: int, seed: int) -> list[float]:
        valuation = ShapleyValuation(validation(), estimator=estimator, num_samples=2, seed=seed)
        steps = (4.5, 2.5, -3.7, 1.2, 0.3)
        return valuation.score(round_of(*steps, server_round=server_round)).values.tolist()

    assert score(3, 7) == score(3, 7)
    assert score(3, 7) != score(4, 7)
    assert score(3, 7) != score(3, 8)
