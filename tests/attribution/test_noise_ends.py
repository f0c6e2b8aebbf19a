"""Contributions at both ends of the share of wrong labels: by hand, and as a run at each end."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedif_flower import FedAvg, Validation
from fedif_flower.attribution.credit import CreditBounds
from fedif_flower.attribution.records import ClientAttribution, NoiseEnd, take_back
from fedif_flower.attribution.table import client_lines, split_columns
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.stages import FedAvgM
from tests.strategies.lines import ROUNDING, Movers, attributed, validation, values

INTERVAL = (0.1, 0.3)


class Odds(nn.Module):
    """Says class 1 with the odds exp(weight * x)."""

    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        Odds.passes += 1
        return torch.cat([torch.zeros_like(inputs), self.weight * inputs], dim=1)


def odds(kind=Validation) -> Validation:
    """Four examples alike, of which one is called 0."""
    return kind(Odds(), torch.ones(4, 1), torch.tensor([1, 1, 1, 0]), device="cpu")


# One adds twice what triples the odds, the other one nothing: the step triples them.
TRIPLED = Movers([[2 * math.log(3)], [0.0]])


def fedavg(held_out: Validation, stages=(), **base) -> FedAvg:
    return FedAvg(stages=stages, **base)


def slope(noise: float, right: float) -> float:
    """The loss's slope along the weight, where class 1 has the probability ``right``.

    An example counts (a - b) p_y / q of what it does in cross-entropy, where its slope is
    -(1 - p_1) or p_1; a = 1 - noise, b = noise.
    """
    a, b = 1 - noise, noise
    of_ones = -(a - b) * right / (b + (a - b) * right) * (1 - right)
    of_zeros = (a - b) * (1 - right) / (b + (a - b) * (1 - right)) * right
    return (3 * of_ones + of_zeros) / 4


def test_contributions_at_both_ends_by_hand():
    """By the trapezoid, from odds of 1 (p = 1/2) to odds of 3 (p = 3/4).

    With a tenth of wrong labels the slopes are -.8/4 = -.2 and (-3 x .15 / .7 + .15 / .3) / 4 =
    -.0357, with three tenths -.1 and (-3 x .075 / .6 + .075 / .4) / 4 = -.0469.
    """
    assert slope(0.1, 0.75) == pytest.approx((-0.45 / 0.7 + 0.5) / 4)
    assert slope(0.3, 0.75) == pytest.approx(-0.046875)
    held_out = odds().with_noise(0.2, INTERVAL)
    (found,) = attributed(fedavg, TRIPLED, held_out=held_out, model=Odds()).rounds
    by_hand = {
        noise: -math.log(3) * (slope(noise, 0.5) + slope(noise, 0.75)) / 2
        for noise in (0.1, 0.2, 0.3)
    }
    first, second = found.clients
    assert first.contribution == pytest.approx(by_hand[0.2], rel=10 * ROUNDING)
    low, high = first.noise_ends
    assert low.contribution == pytest.approx(by_hand[0.1], rel=10 * ROUNDING)
    assert high.contribution == pytest.approx(by_hand[0.3], rel=10 * ROUNDING)
    assert (low.credited, high.credited) == (low.contribution, high.contribution)
    assert second.noise_ends == (NoiseEnd(0.0, 0.0), NoiseEnd(0.0, 0.0))


@pytest.mark.parametrize(("noise", "interval"), [(0.0, None), (0.0, INTERVAL), (0.2, None)])
def test_where_there_is_no_doubt_nothing_is_measured_beside(noise, interval):
    held_out = odds().with_noise(noise, interval)
    callback = attributed(fedavg, TRIPLED, held_out=held_out, model=Odds())
    assert not callback.has_noise_ends
    assert [client.noise_ends for client in callback.rounds[0].clients] == [(), ()]
    assert not [name for name in client_lines(callback.rounds[0])[0] if "noise" in name]


def test_what_is_measured_beside_changes_no_contribution():
    found = {}
    for interval in (None, INTERVAL):
        held_out = odds().with_noise(0.2, interval)
        callback = attributed(fedavg, TRIPLED, 2, held_out=held_out, model=Odds())
        found[interval] = [values(of_round) for of_round in callback.rounds]
    assert found[None] == found[INTERVAL]


@pytest.mark.parametrize(("rule", "middles"), [("trapezoid", 0), ("simpson", 3)])
def test_no_gradient_is_taken_twice(rule, middles):
    """Three rounds have four models, at which the loss's own gradient is known."""
    shares = []

    class Counted(Validation):
        def noise_gradients(self, noises, params, buffers=None):
            shares.append(len(noises))
            return super().noise_gradients(noises, params, buffers)

    held_out = odds(Counted).with_noise(0.2, INTERVAL)
    attributed(fedavg, TRIPLED, 3, rule, held_out=held_out, model=Odds())
    assert sorted(shares) == [2] * 4 + [3] * middles


def test_one_pass_forward_serves_all_shares():
    own = odds().with_noise(0.2)
    before = Odds.passes
    found = own.noise_gradients((0.0, 0.2, 0.4), torch.tensor([math.log(3)]))
    assert Odds.passes == before + len(own.batches)
    by_hand = [slope(noise, 0.75) for noise in (0.0, 0.2, 0.4)]
    assert torch.cat(found).tolist() == pytest.approx(by_hand, rel=10 * ROUNDING)
    with pytest.raises(ValuationError, match="the loss is not corrected for wrong labels"):
        odds().noise_gradients((0.1,), own.params())


# -- as the same run with another share


def many() -> tuple[nn.Linear, Validation]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(45, 3, generator=generator)
    targets = torch.randint(0, 3, (45,), generator=generator)
    torch.manual_seed(2)
    model = nn.Linear(3, 3)
    return model, Validation(model, inputs, targets, device="cpu", batch_size=10)


@pytest.mark.parametrize("has_momentum", [False, True], ids=["plain", "momentum"])
@pytest.mark.parametrize("rule", ["trapezoid", "simpson", "gauss2"])
def test_an_end_is_what_a_run_corrected_for_it_has(rule, has_momentum):
    """FedAvg takes the same steps whatever the loss is: contributions, credits, blocks, classes."""
    generator = torch.Generator().manual_seed(3)
    movers = Movers(torch.randn(4, 12, generator=generator).tolist())
    model, plain = many()
    split = {"blocks": 20, "per_class": True}

    def at(*noise):
        stages = [FedAvgM(0.5, 0.5)] if has_momentum else []
        bounds = CreditBounds(length=1.01, borrowed=1.01, weight=1.01)
        strategy = partial(fedavg, stages=stages)
        options = {"held_out": plain.with_noise(*noise), "model": model, "bounds": bounds, **split}
        return attributed(strategy, movers, 3, rule, **options).rounds

    both = at(0.2, INTERVAL)
    for place, noise in enumerate(INTERVAL):
        for found, expected in zip(both, at(noise), strict=True):
            for client, other in zip(found.clients, expected.clients, strict=True):
                end = client.noise_ends[place]
                near = partial(pytest.approx, rel=1e-4, abs=1e-6)
                assert end.contribution == near(other.contribution)
                assert end.credited == near(other.credited)
                assert end.blocks == near(other.blocks)
                assert sum(end.blocks) == pytest.approx(end.contribution, rel=1e-9, abs=1e-12)
    assert any(
        end.credited < end.contribution - 1e-3
        for found in both
        for client in found.clients
        for end in client.noise_ends
    )


def test_a_step_back_has_both_ends_with_the_other_sign():
    end = NoiseEnd(0.5, 0.25, (0.375, 0.125))
    back = take_back(ClientAttribution(0, 1000, 1.0, 0.75, noise_ends=(end, end), carried=0.5))
    assert (back.contribution, back.carried) == (-0.75, -0.5)
    assert back.noise_ends == (NoiseEnd(-0.5, -0.25, (-0.375, -0.125)),) * 2


def test_a_run_that_goes_on_keeps_both_ends():
    run = partial(attributed, fedavg, TRIPLED, 2, model=Odds())
    whole = run(held_out=odds().with_noise(0.2, INTERVAL))
    again = run(held_out=odds().with_noise(0.2, INTERVAL))
    again.load_state_dict(whole.state_dict(2), whole.lines(0, 2), 2)
    assert again.rounds == whole.rounds


def test_the_columns_are_those_of_the_lines():
    model, plain = many()
    movers = Movers([[0.1] * 12, [0.2] * 12])
    held_out = plain.with_noise(0.2, INTERVAL)
    callback = attributed(fedavg, movers, held_out=held_out, model=model, blocks=20)
    line = client_lines(callback.rounds[0])[0]
    columns = split_columns(0, 20, has_noise_ends=True)
    assert [name for name in line if name in columns] == columns
    low, high = callback.rounds[0].clients[0].noise_ends
    assert line["contribution_noise_low"] == low.contribution
    assert line["credited_noise_high"] == high.credited
    assert line["contribution_noise_high_block_7"] == pytest.approx(high.blocks[7], rel=1e-5)
    assert split_columns(0, 1) == ["contribution_block_0"]


# -- what knows the interval


def test_parts_of_a_held_out_set_have_its_interval():
    own = many()[1].with_noise(0.2, INTERVAL)
    assert own.noise_interval == INTERVAL
    assert own.sample(10, torch.Generator().manual_seed(0)).noise_interval == INTERVAL
    assert own.with_noise(0.25).noise_interval is None
    assert own.with_noise(0.0, INTERVAL).noise_interval is None


def test_chances_by_class_have_no_interval():
    chances = torch.tensor([[0.8, 0.2], [0.2, 0.8]])
    assert odds().with_noise(chances, INTERVAL).noise_interval is None


def test_chances_by_class_have_no_ends_and_are_attributed_all_the_same():
    """An interval of one share says nothing of how likely each confusion is."""
    chances = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
    held_out = odds().with_noise(chances, INTERVAL)
    assert held_out.noise_interval is None
    (found,) = attributed(fedavg, TRIPLED, rule="simpson", held_out=held_out, model=Odds()).rounds
    assert found.clients[0].contribution > 0
    assert found.clients[0].noise_ends == ()


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.3, 0.3), "interval = .*allowed: 0 <= low < high"),
        ((-0.1, 0.3), "interval = .*allowed: 0 <= low < high"),
        ((0.1, 0.5), "noise = 0.5; allowed: >= 0 and < 0.5"),
    ],
)
def test_an_interval_out_of_range_is_refused(interval, words):
    with pytest.raises(ConfigError, match=words):
        odds().with_noise(0.2, interval)


def test_a_loss_that_is_no_cross_entropy_has_no_ends():
    own = validation().with_noise(0.2, INTERVAL)
    assert own.noise_interval is None
