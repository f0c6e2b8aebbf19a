from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedif_flower import InfluenceDescent, Validation
from fedif_flower.strategies import DescentSettings, Setup
from tests.strategies.lines import Movers, column, play, point

BASE = {"fraction_evaluate": 0.0, "stages": (), "setup": Setup(device="cpu")}


def bowl() -> Validation:
    """Half the squared distance of a point from (1, 0)."""

    def loss(outputs, targets):
        return (outputs - targets).square().mean()

    inputs, targets = torch.eye(2), torch.tensor([[1.0], [0.0]])
    return Validation(point(), inputs, targets, loss_fn=loss, device="cpu")


def test_a_round_by_hand():
    strategy = InfluenceDescent(bowl(), gamma=0.5, descent=DescentSettings(steps=1), **BASE)
    movers = Movers([[1.0, 0.0], [0.0, 1.0]], examples=[10, 30])
    params, (report,) = play(strategy, point(), movers)
    # At (1/4, 3/4) the gradient is (-3/4, 3/4): slopes -9/8 and 3/8, of deviation sqrt(27) / 8.
    odds = math.exp(math.sqrt(3)) / (3 * math.exp(-1 / math.sqrt(3)))
    weight = odds / (1 + odds)
    assert column(report, "weight") == pytest.approx([weight, 1 - weight])
    assert params.tolist() == pytest.approx([weight, 1 - weight])
    assert column(report, "score") == pytest.approx([4 * weight, (1 - weight) * 4 / 3])
    expected = [0.5 + 0.5 * score for score in column(report, "score")]
    assert column(report, "weight_score") == pytest.approx(expected)
    assert list(strategy.weight_scores.values()) == pytest.approx(expected)
    assert report.losses == pytest.approx((9 / 16, (1 - weight) ** 2))
    assert report.evaluations == 2


def test_what_it_descends_is_the_loss_of_the_shortened_updates():
    # The first update would lead far past (1, 0), and lose; cut to 1, it leads there.
    movers = Movers([[100.0, 0.0], [0.0, 0.5], [0.0, 0.5]])
    strategy = InfluenceDescent(bowl(), **{**BASE, "stages": None})
    params, (report,) = play(strategy, point(), movers)
    assert column(report, "weight")[0] > 0.9
    assert params.tolist() == pytest.approx([column(report, "weight")[0], 0.0], abs=0.1)


class Shifted(nn.Linear):
    """A point's first coordinate, plus a buffer that clients send as well."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, inputs):
        return super().forward(inputs) + self.shift


def test_buffers_are_those_of_the_weights():
    held_out = Validation(
        Shifted(), torch.ones(1, 1), torch.zeros(1, 1), loss_fn=nn.functional.mse_loss, device="cpu"
    )
    strategy = InfluenceDescent(held_out, descent=DescentSettings(steps=1), **BASE)
    # Weight and shift: at equal weights the model gives 2 + 3.
    _, (report,) = play(strategy, Shifted(), Movers([[1.0, 4.0], [3.0, 2.0]]))
    first, second = column(report, "weight")
    assert first > second
    assert report.losses == pytest.approx((25.0, (first * 5 + second * 5) ** 2))
    # The smaller weight is the better one; with the shifts swapped it is that still.
    strategy = InfluenceDescent(held_out, descent=DescentSettings(steps=1), **BASE)
    _, (report,) = play(strategy, Shifted(), Movers([[1.0, 2.0], [3.0, 4.0]]))
    first, second = column(report, "weight")
    assert report.losses == pytest.approx((25.0, (first * 3 + second * 7) ** 2))


def test_a_round_looks_at_a_sample_of_its_own():
    """Each example wants another point, and a round's descent goes where its sample is."""
    inputs, targets = torch.ones(40, 1), torch.arange(40.0)[:, None]
    held_out = Validation(
        nn.Linear(1, 1, bias=False), inputs, targets, loss_fn=nn.functional.mse_loss, device="cpu"
    )
    movers = Movers([[0.0], [40.0]])

    def losses(examples: int, movers: Movers = movers) -> list[float]:
        start = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(start.weight)
        strategy = InfluenceDescent(held_out, descent=DescentSettings(examples=examples), **BASE)
        _, reports = play(strategy, start, movers, rounds=3)
        return [report.losses[0] for report in reports]

    assert losses(0)[0] == pytest.approx(sum((20 - k) ** 2 for k in range(40)) / 40)
    assert losses(40) == losses(0) == losses(1000)
    assert losses(1) == losses(1)
    assert losses(1)[0] != losses(0)[0]
    # Where nobody moves far, the root of the loss tells which example a round looks at.
    seen = [round(math.sqrt(loss)) for loss in losses(1, Movers([[0.001], [0.002]]))]
    assert len(set(seen)) > 1


def test_it_says_what_a_validation_set_lacks(caplog):
    def of(num_examples: int, labels: tuple[int, ...]) -> str:
        caplog.clear()
        targets = torch.tensor(labels).repeat(num_examples)[:num_examples]
        model = nn.Linear(2, 4)
        InfluenceDescent(Validation(model, torch.ones(num_examples, 2), targets, device="cpu"))
        return caplog.text

    assert of(100, (0, 1, 2, 3)) == ""
    assert "99 validation examples are few" in of(99, (0, 1, 2, 3))
    assert "2 classes have no validation example, the first of them 1" in of(100, (0, 2))
    caplog.clear()
    InfluenceDescent(bowl())
    assert "classes" not in caplog.text  # Its targets are none.
