"""One parameter w and the loss |w - 3| on the validation set: worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedif_flower import FedAvg
from fedif_flower.errors import CheckpointError, ConfigError, ValuationError
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import (
    Clip,
    Destination,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    LossBound,
    MaxLength,
    Proposal,
    ServerOptimizer,
    Stage,
    Stages,
)
from fedif_flower.strategies import RobustRule
from fedif_flower.valuation import Validation
from tests.rounds import a_round
from tests.server.hostile import alike


def distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean()


def held_out(loss_fn=distance) -> Validation:
    ones, model = torch.ones(2, 1), nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return Validation(model, ones, 3 * ones, loss_fn=loss_fn, device="cpu")


def bounds() -> Stages:
    return Stages([Clip(2.0), LossBound(held_out())])


def weighed(weights: Sequence[float], **more: Any) -> Aggregation:
    """Return a rule's answer with these weights."""
    return Aggregation(torch.tensor(weights, dtype=torch.float64), **more)


def settle(
    stages: Stages, start: float, *steps: float, weights: Sequence[float] = (), **more: Any
) -> Destination:
    """Return where weights, equal ones by default, lead from ``start``."""
    model = ModelVectors(torch.tensor([start]), torch.zeros(0))
    updates = a_round(torch.tensor(steps)[:, None], model=model, **more)
    chosen = weights or [1 / len(steps)] * len(steps)
    return stages.settle(stages.before(updates), weighed(chosen))


def led_to(*of: Any, **more: Any) -> float:
    return settle(*of, **more).params.item()


def test_updates_that_raise_the_loss_lose_their_weight():
    # Bounded by 4, the mean of 1, 2, 2, -4 and -4 is -3 / 5: beyond 10 % of the loss at the start.
    assert 1.0 < led_to(bounds(), 0.0, 1.0, 2.0, 2.0, -9.0, -9.0) <= 2.0


def test_nothing_is_remembered_of_a_step_that_missed_the_bound():
    subject = bounds()
    settle(subject, 0.0, -2.0)
    assert led_to(subject, -0.125, 2.0, server_round=2) == pytest.approx(1.875)
    # The usual length is 1/4 by then, the bound 1/2.
    third = led_to(subject, 1.875, 2.0, 0.25, server_round=3)
    assert third == pytest.approx(1.875 + (0.5 + 0.25) / 2)


def test_the_least_loss_counts_not_the_last():
    subject = bounds()
    assert led_to(subject, 0.0, 3.0) == 3.0
    # Loss 0 was reached; the bound is 0.3, wherever the model is now.
    assert led_to(subject, 3.0, -0.25, server_round=2) == 2.75
    assert led_to(subject, 2.75, -0.25, server_round=3) == 2.75 - 0.25 / 16


def test_the_state_of_other_stages_is_refused():
    with pytest.raises(CheckpointError, match=r"stages: \[FedAvgM.*; saved"):
        Stages([FedAvgM(0.5, 0.5)]).load_state_dict(bounds().state_dict())


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([2.0], r"stages: 2\.0; allowed: stages, such as Clip"),
        ([LossBound(), LossBound()], "at most one stage with a choose of its own"),
    ],
)
def test_what_are_no_stages_is_named(stages, words):
    with pytest.raises(ConfigError, match=words):
        Stages(stages)


def test_a_longer_update_is_shortened_in_place_as_it_arrives():
    update = torch.tensor([3.0, 4.0])
    arrive = Stages([MaxLength(1.0)]).arrive
    assert arrive(update, 25.0) == arrive(update, 1.0) == 1.0
    assert update.tolist() == pytest.approx([0.6, 0.8])
    assert Stages([MaxLength(5.0)]).arrive(update, 1.0) == 1.0


def test_a_stage_that_forgets_the_squared_norm_is_named():
    class Forgets(Stage):
        def arrive(self, update, squared_norm):
            update.mul_(0.5)

    with pytest.raises(ValuationError, match="stage Forgets: arrive returns NoneType; allowed"):
        Stages([Forgets()]).arrive(torch.ones(2), 2.0)


# -- clipping


def three(**more: Any) -> RoundUpdates:
    """Return a round of three, of parameters as long as 1, 1 and 8, of buffers 1, 1 and 10."""
    buffers = torch.tensor([[1.0], [1.0], [10.0]])
    return a_round(torch.tensor([[1.0], [1.0], [8.0]]), buffer_updates=buffers, **more)


def test_parameters_and_buffers_are_held_to_the_multiple_of_their_own_lengths():
    clipped = Clip(2.0).before(three())
    assert clipped.shortening.tolist() == pytest.approx([1.0, 1.0, 2 / 8])
    assert clipped.buffer_shortening.tolist() == pytest.approx([1.0, 1.0, 2 / 10])
    assert clipped.client_updates.tolist() == [[1.0], [1.0], [8.0]]  # Scores see them whole.
    # What an earlier stage shortened stays so short.
    halved = torch.tensor([1.0, 0.5, 0.5], dtype=torch.float64)
    clipped = Clip(2.0).before(three(factors=halved, buffer_factors=halved.flip(0)))
    assert clipped.shortening.tolist() == pytest.approx([1.0, 0.5, 0.5 * 2 / 8])
    assert clipped.buffer_shortening.tolist() == pytest.approx([0.5, 0.5, 2 / 10])


class Shifted(nn.Module):
    """A weight, and a buffer that its outputs are shifted by."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs + 0.1 * self.shift


@pytest.mark.parametrize(
    ("steps", "coefficients", "shift"),
    [
        # 0.5 leads from |0 - 3| to 2.5: as the weights are.
        ([0.5, 0.5], [0.5, 0.5], 4.0),
        # 7 goes too far, and its half is best.
        ([7.0, 7.0], [0.25, 0.25], 2.0),
        # To -2.5, its half, and so on all raise the loss: the descent takes the first alone.
        ([1.0, -6.0], [1.0, 0.0], 0.0),
    ],
)
def test_buffers_go_by_the_weights_that_are_chosen(steps, coefficients, shift):
    """The second client says 8 for the buffer, the first 0."""
    ones = torch.ones(2, 1)
    validation = Validation(Shifted(), ones, 3 * ones, loss_fn=distance, device="cpu")
    layout = ParameterLayout.from_arrays(model_arrays(Shifted()), validation.parameter_names, {})
    updates = a_round(
        torch.tensor(steps)[:, None],
        buffer_updates=torch.tensor([[0.0], [8.0]]),
        counters=[{}, {}],
        names=layout,
    )
    stages = Stages([LossBound(validation, tolerance=0.0, descent_steps=40)])
    chosen = stages.settle(updates, weighed([0.5, 0.5]))
    assert chosen.coefficients.tolist() == pytest.approx(coefficients, abs=1e-3)
    assert chosen.buffers.tolist() == pytest.approx([shift], abs=1e-2)


def squares(*norms: float) -> torch.Tensor:
    return torch.tensor(norms, dtype=torch.float64).square()


def test_each_client_counts_once_whoever_makes_up_a_round_until_it_is_forgotten():
    clip = Clip(2.0)
    clip.factors(1, [1, 2, 3, 4], squares(1, 1, 1, 1))
    # Three of four in this round are far too long, three of seven among all.
    found = clip.factors(2, [5, 6, 7, 4], squares(10, 100, 1000, 1))
    assert found.tolist() == pytest.approx([2 / 10, 2 / 100, 2 / 1000, 1])
    for server_round in range(3, 21):
        assert clip.factors(server_round, [5], squares(10)).tolist() == pytest.approx([0.2])
    # The lengths of round 1 are out of its memory.
    assert clip.factors(21, [5, 6, 7], squares(10, 10, 10)).tolist() == [1.0] * 3


def test_the_lengths_of_a_round_that_fails_are_not_remembered():
    clip = Clip(2.0)
    clip.factors(1, [1, 2, 3], squares(1, 1, 1))
    before = clip.state_dict()

    def diverge(updates: RoundUpdates) -> Tensor:
        raise ValuationError(f"round {updates.server_round} fails")

    strategy = RobustRule(diverge, stages=[clip], fraction_evaluate=0.0)
    with pytest.raises(ValuationError, match="round 2 fails"):
        strategy.aggregate(a_round(torch.full((3, 1), 1e6), server_round=2))
    assert clip.state_dict() == before
    # Beside 1e6 as the usual length, 8 would be short.
    assert clip.factors(3, [4], squares(8)).tolist() == pytest.approx([2 / 8])


@given(
    honest=st.lists(st.floats(0.5, 2.0), min_size=3, max_size=9),
    malicious=st.lists(st.floats(0, 1e15), min_size=1, max_size=8),
)
def test_a_minority_cannot_move_the_bound_out_of_the_honest_lengths(honest, malicious):
    malicious = malicious[: len(honest) - 1]
    clip = Clip(2.0)
    clip.factors(1, range(len(honest)), squares(*honest))
    for server_round in range(2, 6):
        hostile = range(100, 100 + len(malicious))
        factors = clip.factors(server_round, hostile, squares(*malicious))
        assert bool(((factors > 0) & (factors <= 1)).all())
        left = factors * torch.tensor(malicious, dtype=torch.float64)
        assert bool((left <= 2 * max(honest) * (1 + 1e-9)).all())


# -- the bound by the loss


def test_who_has_no_weight_may_be_all_that_helps():
    # The whole step leads to -4, a sixteenth of it to -1/4; the other member's alone to 2.
    assert led_to(Stages([LossBound(held_out())]), 0.0, -4.0, 2.0, weights=[1.0, 0.0]) > 1.0


def test_weights_in_single_precision_are_bounded_like_any():
    """Half of the step by 8 is the best share of it; the shares of the weight stay."""
    stages = Stages([LossBound(held_out(), descent_steps=0)])
    updates = a_round(torch.full((3, 1), 8.0))
    _, aggregation = stages.combined(updates, Aggregation(torch.ones(3) / 3))
    assert aggregation.weights.tolist() == pytest.approx([1 / 6] * 3)


def test_other_weights_have_the_sum_of_the_strategy_s_own():
    """By (1, 1) the step is -3; the second alone, twice, leads to 2, where it is best."""
    bound = Stages([LossBound(held_out(), descent_steps=40)])
    step = settle(bound, 0.0, -4.0, 1.0, weights=[1.0, 1.0])
    assert step.coefficients.tolist() == pytest.approx([0.0, 2.0], abs=1e-3)


@pytest.mark.parametrize("shortest", [0.0, -1e-6, 0.25 - 1e-3])
def test_who_sends_the_model_back_does_not_hold_it_where_it_is(shortest):
    """Of three members two go uphill by 4: all weight on the third would leave the model at 0."""
    whole = (-8.0 + shortest) / 3
    there = led_to(Stages([LossBound(held_out())]), 0.0, -4.0, -4.0, shortest)
    assert there == pytest.approx(whole / 16)


def test_who_sends_more_than_a_sixteenth_of_the_usual_length_may_be_all_that_helps():
    """The usual length is 4. All weight on the third leads to 0.26, downhill."""
    assert led_to(Stages([LossBound(held_out())]), 0.0, -4.0, -4.0, 0.26) == pytest.approx(0.26)


def test_where_nobody_moves_the_model_there_are_no_other_weights():
    assert led_to(Stages([LossBound(held_out())]), 0.0, 0.0, 0.0) == 0.0


def test_other_weights_are_those_of_updates_as_they_were_shortened():
    """The third alone helps; it counts as 4, twice the usual length. Whole, 8 is too far."""
    assert 2.0 < led_to(bounds(), 0.0, -2.0, -2.0, 8.0, weights=[0.5, 0.5, 0.0]) <= 4.0


def test_with_a_negative_weight_shares_of_the_step_alone_are_tried():
    """The step is -4 - 4 = -8; the second against itself, or the first alone, would do better."""
    bound = Stages([LossBound(held_out())])
    assert led_to(bound, 0.0, 4.0, -2.0, weights=[-1.0, 2.0]) == -0.5


def test_a_negative_loss_may_rise_by_its_share_as_well():
    """From -1 to -.95, where -.9 is the most: a step is taken whole."""
    bound = LossBound(held_out(lambda *pair: distance(*pair) - 4), descent_steps=0)
    assert led_to(Stages([bound]), 0.0, -0.05) == pytest.approx(-0.05)
    assert bound.state_dict()["held"] == 0


def test_updates_that_nobody_sees_are_shortened_alone():
    sums: list[Tensor] = []

    def summed(weights: Tensor) -> Tensor:
        sums.append(weights)
        return (weights @ torch.tensor([-4.0, 2.0], dtype=torch.float64)).float().reshape(1)

    bound, hidden = Stages([LossBound(held_out())]), SimpleNamespace(summed=summed)
    step = settle(bound, 0.0, -4.0, 2.0, unseen=hidden)
    assert step.coefficients.tolist() == [0.5 / 16, 0.5 / 16]
    assert len(sums) == 5


def test_where_no_step_has_a_finite_loss_the_round_fails():
    def here_alone(outputs: Tensor, targets: Tensor) -> Tensor:
        lost = distance(outputs, targets)
        return torch.where(lost == 3.0, lost, math.nan)

    with pytest.raises(ValuationError, match="no step leads to a finite validation loss"):
        settle(Stages([LossBound(held_out(here_alone))]), 0.0, 1.0)


def test_a_bound_holds_after_a_first_round_that_failed():
    def near_alone(outputs: Tensor, targets: Tensor) -> Tensor:
        lost = distance(outputs, targets)
        return torch.where(lost < 100, lost, math.nan)

    bound = LossBound(held_out(near_alone), descent_steps=0)
    stages = Stages([bound])
    strategy = FedAvg(stages=[bound], fraction_evaluate=0.0)
    with pytest.raises(ValuationError, match="no step"):
        strategy.aggregate(a_round(torch.tensor([[-1e9]])))
    assert bound.remark() == ""
    # 3.3 is the most that it may lose: a sixteenth of the step loses 4.
    assert led_to(stages, 0.0, -16.0, server_round=2) == -1.0
    expected = {"first": 3.0, "least": 3.0, "least_before": 3.0, "held": 1}
    assert bound.state_dict() == expected


@pytest.mark.parametrize("between", [(), (0.0,), (0.0, 0.0)])
def test_the_loss_of_a_model_that_is_taken_back_is_forgotten_after_rounds_without_a_step(between):
    bound = LossBound(held_out(), descent_steps=0)
    stages = Stages([bound])
    assert led_to(stages, 0.0, 1.0) == 1.0
    assert led_to(stages, 1.0, 2.0, server_round=2) == 3.0
    for step in between:
        assert led_to(stages, 3.0, step, server_round=3) == 3.0
    assert bound.state_dict()["least"] == 0.0
    stages.take_back()
    assert bound.state_dict()["least"] == 2.0


def test_a_bound_that_goes_on_forgets_the_loss_of_a_model_that_is_taken_back():
    bound = LossBound(held_out(), descent_steps=0)
    stages = Stages([bound])
    assert led_to(stages, 0.0, 1.0) == 1.0
    assert led_to(stages, 1.0, 2.0, server_round=2) == 3.0
    (again := LossBound(held_out(), descent_steps=0)).load_state_dict(bound.state_dict())
    again.take_back()
    assert again.state_dict()["least"] == 2.0


def test_a_step_is_judged_with_the_noise_that_is_added_to_it():
    bound = LossBound(held_out(), descent_steps=0)
    weighed = Aggregation(torch.ones(1, dtype=torch.float64), noise=torch.tensor([4.0]))
    after, answer = Stages([bound]).combined(a_round(torch.tensor([[6.0]])), weighed)
    # 6 alone would lose 3, as the model before it does; it leads to 10, and a sixteenth to 4.375.
    assert after.params.item() == 4.375
    assert answer.applied.item() == 1 / 16
    assert bound.state_dict()["least"] == 1.375


class Switched(nn.Linear):
    """A model with one parameter, and a switch that nobody trains."""

    def __init__(self, *, is_on: bool) -> None:
        super().__init__(1, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.register_buffer("is_on", torch.tensor(is_on))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        return outputs.where(self.is_on, -outputs)


def test_steps_are_judged_by_the_run_s_own_switch():
    """The model that the held-out set was given has another one, by which -1 is a good step."""
    ones = torch.ones(2, 1)
    judge = Validation(Switched(is_on=False), ones, 3 * ones, loss_fn=distance, device="cpu")
    arrays = model_arrays(Switched(is_on=True))
    layout = ParameterLayout.from_arrays(arrays, ["weight"])
    updates = a_round(torch.tensor([[-1.0]]), model=layout.to_vectors(arrays), names=layout)
    bound = LossBound(judge, descent_steps=0)
    step = Stages([bound]).settle(updates, weighed([1.0]))
    assert step.params.item() == -1 / 16
    expected = {"first": 3.0, "least": 3.0, "least_before": 3.0, "held": 1}
    assert bound.state_dict() == expected


def test_a_model_that_swings_goes_on_swinging():
    """Each step overshoots: it leads from one side of 3 to the other, and on."""
    bound, place, places = Stages([LossBound(held_out())]), 0.0, []
    for _ in range(20):
        place = led_to(bound, place, 2.5 * (3.0 - place))
        places.append(place)
    assert all(a != b for a, b in pairwise(places) if a != 3.0)
    assert abs(place - 3.0) < 0.5


@pytest.mark.parametrize(
    ("least", "words"),
    [
        (9.0, "the loss hardly fell (from 10 to 9 at best): try a lower learning-rate"),
        (8.9, "this is no reason to worry, since the loss fell from 10 to 8.9"),
    ],
)
def test_a_bound_that_held_is_no_reason_to_worry_where_the_loss_fell_by_a_tenth(least, words):
    bound = LossBound(held_out())
    bound.load_state_dict({"first": 10.0, "least": least, "held": 2})
    assert "in 2 rounds the whole step exceeded the bound on the validation loss" in bound.remark()
    assert words in bound.remark()


def test_a_step_that_misses_the_bound_begins_a_new_mean():
    momentum = FedAvgM(0.5, 0.5)
    momentum.advance(torch.zeros(1), torch.tensor([-8.0]))
    assert momentum.moves_on
    bound = LossBound(held_out(lambda *pair: distance(*pair) - 4))  # A loss may be negative.
    assert bound.remark() == ""
    settle(Stages([bound, momentum]), 0.0, -1.0)
    assert bound.remark().startswith("in 1 round the whole step exceeded the bound")
    assert not momentum.moves_on


def test_a_step_that_missed_the_bound_is_judged_by_where_it_leads_without_the_old_mean():
    momentum, bound = FedAvgM(0.5, 1.0), LossBound(held_out(), descent_steps=0)
    momentum.advance(torch.zeros(1), torch.tensor([17.0]))
    bound.load_state_dict({"first": 3.0, "least": 0.0, "held": 0})
    # After the mean -8 leads from 2 to 2.5, by itself to -6: a sixteenth of it loses least.
    assert led_to(Stages([bound, momentum]), 2.0, -8.0) == 1.5


def test_without_a_validation_set_every_step_is_taken():
    assert led_to(Stages([LossBound()]), 0.0, -4.0) == -4.0


# -- server optimizers


def go(optimizer: ServerOptimizer, start: float, *steps: float) -> list[float]:
    """Return where a model of one parameter is after each step."""
    place, places = torch.tensor([start], dtype=torch.float64), []
    for step in steps:
        place = optimizer.advance(place, place + step)
        places.append(place.item())
    return places


def test_momentum_by_hand():
    # The sums are 4, then 2 + 8 = 10, then 5 + 0.
    assert go(FedAvgM(0.5, 1.0), 1.0, 4.0, 8.0, 0.0) == [5.0, 15.0, 20.0]
    # Their halves are the running means 2, 5 and 2.5.
    assert go(optimizer := FedAvgM(0.5, 0.5), 1.0, 4.0, 8.0, 0.0) == [3.0, 8.0, 10.5]
    assert optimizer.step_factors == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("kind", "squares"),
    [
        (FedAdagrad, [1 + 4, 1 + 4 + 9]),
        (FedAdam, [0.5 + 2, 1.25 + 4.5]),
        (FedYogi, [1 + 2, 3 + 4.5]),  # 1 is below 4 and 3 below 9: both grow.
    ],
)
def test_two_steps_of_reddi_s_algorithm_by_hand(kind, squares):
    """Steps 2 and 3 with tau = 1, so that v begins at 1; both betas 1/2: m = 1, then 2."""
    found = go(kind(learning_rate=0.1, beta1=0.5, beta2=0.5, tau=1.0), 0.0, 2.0, 3.0)
    first = 0.1 * 1 / (sqrt(squares[0]) + 1)
    second = first + 0.1 * 2 / (sqrt(squares[1]) + 1)
    assert found == pytest.approx([first, second])


@pytest.mark.parametrize(
    ("kind", "square"),
    [(FedAdagrad, 4 + 1), (FedAdam, 2 + 0.5), (FedYogi, 4 - 0.5)],
)
def test_a_step_whose_square_is_below_the_mean_one_by_hand(kind, square):
    """A step of 1 with tau = 2, so that v begins at 4, which Yogi's falls from; m = 1/2."""
    found = go(kind(learning_rate=0.1, beta1=0.5, beta2=0.5, tau=2.0), 0.0, 1.0)
    assert found == pytest.approx([0.1 * 0.5 / (sqrt(square) + 2)])


def test_any_optimizer_of_torch_moves_the_model():
    optimizer = ServerOptimizer(partial(torch.optim.Adam, lr=0.5, eps=0.0))
    assert go(optimizer, 1.0, 8.0, 8.0) == pytest.approx([1.5, 2.0])  # Bias is corrected there.


class Slowing(torch.optim.Optimizer):
    """The k-th step is a k-th of the gradient; k is no state of a parameter's."""

    def __init__(self, params: list[Tensor]) -> None:
        super().__init__(params, {"k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            for values in group["params"]:
                values.sub_(values.grad, alpha=1 / group["k"])


def test_what_an_optimizer_counts_for_all_parameters_together_goes_on():
    optimizer = ServerOptimizer(Slowing)
    assert go(optimizer, 0.0, 6.0, 6.0) == [6.0, 9.0]
    (again := ServerOptimizer(Slowing)).load_state_dict(optimizer.state_dict())
    assert go(optimizer, 9.0, 6.0) == go(again, 9.0, 6.0) == [11.0]
    optimizer.take_back()
    assert go(optimizer, 9.0, 6.0, 8.0) == [11.0, 13.0]


def test_an_option_that_no_step_changes_is_the_new_run_s():
    first = ServerOptimizer(partial(torch.optim.SGD, lr=1.0, momentum=0.5))
    go(first, 0.0, 4.0)
    second = ServerOptimizer(partial(torch.optim.SGD, lr=0.5, momentum=0.5))
    second.load_state_dict(first.state_dict())
    assert go(second, 0.0, 4.0) == [0.5 * (2 + 4)]


OTHERS = [torch.zeros(2)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (torch.optim.LBFGS, "closure"),
        (torch.optim.SGD(OTHERS), "'SGD' object is not callable"),
        (lambda params: torch.optim.SGD(OTHERS), "not one of the parameters that it was given"),
        (lambda params: params, "'list' object has no attribute 'param_groups'"),
        # 0 / 0 for whatever nobody has changed.
        (partial(torch.optim.Adam, eps=0.0), "where a gradient is 0 it leads to NaN or Inf"),
    ],
)
def test_an_optimizer_that_takes_no_step_is_refused_before_any_client_works(make, words):
    asked: list[int] = []
    clients = alike(lambda *_: asked.append(1))
    strategy = FedAvg(stages=[ServerOptimizer(make)])
    with pytest.raises(ConfigError, match=rf"takes no step: \w+: .*{words}"):
        strategy.start(LocalGrid(clients, 3), ArrayRecord({"w": torch.zeros(2)}))
    assert not asked


OPTIMIZERS = pytest.mark.parametrize("make", [FedAvgM, FedAdam, FedYogi, FedAdagrad])


@OPTIMIZERS
def test_looking_ahead_changes_nothing_and_what_was_taken_back_is_forgotten(make):
    plain, other = make(), make()
    expected = go(plain, 0.0, 4.0, 8.0)
    go(other, 0.0, 4.0, 1e9)
    other.take_back()
    before = torch.tensor([expected[0]], dtype=torch.float64)
    assert other.lead(before, before + 8).item() == expected[1]
    assert go(other, expected[0], 8.0) == expected[1:]


@OPTIMIZERS
def test_a_step_that_began_anew_can_be_taken_back_to_the_steps_before_it(make):
    plain, other = make(), make()
    expected = go(plain, 0.0, 4.0, 8.0)
    go(other, 0.0, 4.0)
    other.restart()
    assert not other.moves_on
    go(other, expected[0], -1.0)
    other.take_back()
    assert go(other, expected[0], 8.0) == expected[1:]


@OPTIMIZERS
@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_step_can_be_taken_back_after_a_restart_of_the_run(make, begins_anew):
    plain, first, second = make(), make(), make()
    expected = go(plain, 0.0, 4.0, 8.0)
    go(first, 0.0, 4.0)
    if begins_anew:
        first.restart()
    go(first, expected[0], -1.0)
    second.load_state_dict(first.state_dict())
    second.take_back()
    assert go(second, expected[0], 8.0) == expected[1:]


@OPTIMIZERS
def test_an_optimizer_that_is_to_begin_anew_does_so_after_a_restart_of_the_run(make):
    first, second = make(), make()
    once = go(make(), 0.0, 4.0)
    go(first, 0.0, 9.0)
    first.restart()
    second.load_state_dict(first.state_dict())
    assert not second.moves_on
    assert go(second, 0.0, 4.0) == once


def test_a_round_that_fails_under_a_loss_bound_leaves_the_optimizer_as_it_was():
    optimizer = FedAvgM(0.9, learning_rate=1.0)
    stages = Stages([LossBound(held_out()), optimizer])
    go(optimizer, 0.0, 1.0)
    with pytest.raises(ValuationError, match="no step leads to a finite validation loss"):
        settle(stages, 1.0, math.inf)
    assert optimizer.step_factors == [1.0]
    assert optimizer.moves_on


@OPTIMIZERS
def test_goes_on_after_a_restart(make):
    first, second = make(), make()
    go(first, 0.0, 1.0, 2.0)
    kept = first.state_dict()
    second.load_state_dict(kept)
    third = go(second, 5.0, 3.0, 4.0)
    assert go(first, 5.0, 3.0, 4.0) == third
    assert second.step_factors == first.step_factors
    (again := make()).load_state_dict(kept)  # As it was when asked for.
    assert go(again, 5.0, 3.0, 4.0) == third


def test_buffers_go_without_what_brings_updates_to_another_length():
    """Weights 2 and 6 are shares 1/4 and 3/4, eight times as long: buffers go by the shares."""
    updates = a_round(torch.ones(2, 1), buffer_updates=torch.tensor([[4.0], [8.0]]))
    proposed = weighed([2.0, 6.0], rescaling=torch.tensor([8.0, 8.0], dtype=torch.float64))
    whole = Stages().settle(updates, proposed)
    assert (whole.params.item(), whole.buffers.item()) == (8.0, 7.0)

    def chosen(coefficients: list[float]) -> float:
        """Return where the buffer goes if a stage chooses these."""

        class Chooses(Stage):
            def choose(self, proposal: Proposal) -> Destination:
                return proposal.move(torch.tensor(coefficients, dtype=torch.float64))

        return Stages([Chooses()]).settle(updates, proposed).buffers.item()

    assert chosen([1.0, 3.0]) == 3.5  # Half of the step.
    assert chosen([8.0, 0.0]) == 4.0  # Other weights, of the same sum: the first one's alone.


@pytest.mark.parametrize(
    ("coefficients", "weights"),
    [
        ([1.0, 6.0, 0.0], [2.0, 6.0, 4.0]),  # The proposed step.
        ([0.5, 3.0, 0.0], [1.0, 3.0, 2.0]),  # Half of it.
        ([3.0, 6.0, 0.0], [6.0, 6.0, 0.0]),  # Another one.
    ],
)
@pytest.mark.parametrize("rescaling", [None, 8.0])
def test_the_weights_of_a_round_are_those_that_it_took(coefficients, weights, rescaling):
    """The first update counts at half of its length, the last one is shortened to nothing."""

    class Chooses(Stage):
        def choose(self, proposal: Proposal) -> Destination:
            return proposal.move(torch.tensor(coefficients, dtype=torch.float64))

    factors = torch.tensor([0.5, 1.0, 0.0], dtype=torch.float64)
    lengths = None if rescaling is None else torch.full_like(factors, rescaling)
    updates = a_round(torch.ones(3, 1), factors=factors)
    proposed = weighed([2.0, 6.0, 4.0], rescaling=lengths)
    _, aggregation = Stages([Chooses()]).combined(updates, proposed)
    assert aggregation.weights.tolist() == weights
    assert aggregation.applied.tolist() == coefficients
    expected = factors if rescaling is None else rescaling * factors
    assert aggregation.length_factors.tolist() == expected.tolist()


def test_other_weights_bring_no_update_to_a_length_of_its_own():
    """Weights 2 and 1 are halves of updates four times and twice as long: thrice on average."""
    updates = a_round(torch.ones(2, 1))
    proposed = weighed([2.0, 1.0], rescaling=torch.tensor([4.0, 2.0], dtype=torch.float64))

    class Chooses(Stage):
        def choose(self, proposal: Proposal) -> Destination:
            return proposal.move(torch.tensor([0.0, 3.0], dtype=torch.float64))

    _, aggregation = Stages([Chooses()]).combined(updates, proposed)
    assert aggregation.weights.tolist() == [0.0, 3.0]
    assert aggregation.weights_alone.tolist() == [0.0, 1.0]
    assert aggregation.length_factors.tolist() == [3.0, 3.0]
