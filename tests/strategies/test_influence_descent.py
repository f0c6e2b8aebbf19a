from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedif_flower import InfluenceDescent, Validation
from fedif_flower.strategies import DescentSettings
from tests.strategies.lines import BASE, PLAIN, Movers, column, play, point


def judge(model: nn.Module, inputs, targets) -> Validation:
    return Validation(model, inputs, targets, loss_fn=nn.functional.mse_loss, device="cpu")


def bowl() -> Validation:
    """Half the squared distance of a point from (1, 0)."""
    return judge(point(), torch.eye(2), torch.tensor([[1.0], [0.0]]))


def test_a_round_by_hand():
    strategy = InfluenceDescent(bowl(), gamma=0.5, descent=DescentSettings(steps=1), **PLAIN)
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
    strategy = InfluenceDescent(bowl(), **BASE)
    params, (report,) = play(strategy, point(), movers)
    assert column(report, "weight")[0] > 0.9
    assert params.tolist() == pytest.approx([column(report, "weight")[0], 0.0], abs=0.1)


class Shifted(nn.Linear):
    """A number, plus a buffer that clients send as well."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, inputs):
        return super().forward(inputs) + self.shift


def test_buffers_are_those_of_the_weights():
    held_out = judge(Shifted(), torch.ones(1, 1), torch.zeros(1, 1))
    strategy = InfluenceDescent(held_out, descent=DescentSettings(steps=1), **PLAIN)
    # Weight and shift: at equal weights the model gives 2 + 3.
    _, (report,) = play(strategy, Shifted(), Movers([[1.0, 2.0], [3.0, 4.0]]))
    first, second = column(report, "weight")
    assert first > second
    assert report.losses == pytest.approx((25.0, (first * 3 + second * 7) ** 2))


def test_a_round_looks_at_a_sample_of_its_own():
    """Each example wants another point, and a round's descent goes where its sample is."""
    start = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(start.weight)
    held_out = judge(start, torch.ones(40, 1), torch.arange(40.0)[:, None])

    def losses(examples: int, last: float = 40.0) -> list[float]:
        strategy = InfluenceDescent(held_out, descent=DescentSettings(examples=examples), **PLAIN)
        _, reports = play(strategy, start, Movers([[last / 40], [last]]), rounds=3)
        return [report.losses[0] for report in reports]

    assert losses(0)[0] == pytest.approx(sum((20.5 - k) ** 2 for k in range(40)) / 40)
    assert losses(40) == losses(0) == losses(1000)
    assert losses(1) == losses(1)
    assert losses(1)[0] != losses(0)[0]
    # Where nobody moves far, the root of the loss tells which example a round looks at.
    assert len({round(math.sqrt(loss)) for loss in losses(1, 0.002)}) > 1


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 1, 2, 3] * 25, ""),
        ([0, 1, 2, 3] * 24, "96 validation examples are few"),
        ([0, 2] * 50, "2 classes have no validation example, the first of them 1"),
    ],
)
def test_it_says_what_a_validation_set_lacks(labels, words, caplog):
    inputs, targets = torch.ones(len(labels), 2), torch.tensor(labels)
    InfluenceDescent(Validation(nn.Linear(2, 4), inputs, targets, device="cpu"))
    assert words in caplog.text
    assert bool(words) == bool(caplog.text)
