"""Path attribution beside strategies: a loss worked out by hand, real rounds, failing ones."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedif_flower import FedAvg, FedIF, Median, PathAttribution, RobustRule, Validation
from fedif_flower.aggregators import Flame
from fedif_flower.attribution.credit import CreditBounds, PastSteps
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.run import Callback
from fedif_flower.stages import Clip, FedAvgM, FedYogi, LossBound, NearestNeighbours
from fedif_flower.strategies import Setup
from tests.server.hostile import alike, one_more, round_of
from tests.strategies.lines import (
    BASE,
    ROUNDING,
    Movers,
    Shifted,
    attributed,
    fedavg,
    play,
    point,
    squared,
    validation,
    values,
)


def test_a_round_of_fedavg_by_hand():
    callback = attributed(fedavg, Movers([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]], [10, 10, 20]))
    (found,) = callback.rounds
    # Steps (0.5, 0.5), mean gradients -(3.75, 1.75).
    assert values(found) == pytest.approx([0.5 * 3.75, 0.5 * 1.75, 0.0], rel=ROUNDING)
    assert [c.coefficient for c in found.clients] == [0.25, 0.25, 0.5]
    assert (found.loss_before, found.loss_after) == pytest.approx((10.0, 7.25), rel=ROUNDING)
    assert found.remainder == pytest.approx(0.0, abs=10 * ROUNDING)


@pytest.mark.parametrize("rule", ["trapezoid", "simpson", "gauss2", "adaptive"])
def test_rounds_add_up_to_what_was_gained(rule):
    callback = attributed(fedavg, Movers([[1.0, 0.5], [0.5, -1.0], [2.0, 1.0]]), 3, rule)
    assert [found.server_round for found in callback.rounds] == [1, 2, 3]
    for earlier, later in zip(callback.rounds, callback.rounds[1:], strict=False):
        assert earlier.loss_after == later.loss_before
    gained = callback.rounds[0].loss_before - callback.rounds[-1].loss_after
    sums = list(callback.contributions.values())
    assert sum(sums) == pytest.approx(gained, rel=ROUNDING)
    assert sums == sorted(sums, reverse=True)


class Counted(Validation):
    """Counts how often it goes over its data with a backward pass."""

    passes = 0

    def loss_and_gradient(self, params, buffers=None):
        self.passes += 1
        return super().loss_and_gradient(params, buffers)


@pytest.mark.parametrize(
    ("rule", "more"),
    [("trapezoid", 1), ("simpson", 1 + 4), ("gauss2", 1 + 8), ("adaptive", 1 + 4)],
)
def test_fedif_takes_no_gradient_twice(rule, more):
    fedif = partial(FedIF, stages=())
    held_out, movers = validation(Counted), Movers([[0.5, 0.1], [0.1, 0.4], [-0.1, 0.2]])
    callback = attributed(fedif, movers, 4, rule, held_out=held_out)
    assert held_out.passes == 4 + more
    assert len(callback.rounds) == 4


def waves(outputs: Tensor, targets: Tensor) -> Tensor:
    return (1 - torch.cos(3 * (outputs - targets))).mean()


def test_an_adaptive_rule_is_refined_until_contributions_add_up():
    found, passes = {}, {}
    for rule in ("simpson", "adaptive"):
        held_out = validation(Counted, waves, (1.0, 2.0))
        movers = Movers([[4.0, 0.0], [0.0, 6.0]])
        (found[rule],) = attributed(fedavg, movers, 1, rule, held_out=held_out).rounds
        passes[rule] = held_out.passes
    size = sum(abs(client.contribution) for client in found["adaptive"].clients)
    assert abs(found["adaptive"].remainder) < 0.02 * size
    assert abs(found["simpson"].remainder) > 0.2 * size
    assert passes["simpson"] == 3
    assert passes["adaptive"] in (5, 9)  # Twice or four times as many parts.


def with_stages(*stages):
    return partial(fedavg, stages=stages)


@pytest.mark.parametrize(
    ("strategy", "steps", "coefficients"),
    [
        # The long update is shortened to twice the median length: a third of it is applied.
        (with_stages(Clip(2.0)), [[1.0, 0.0], [0.0, 1.0], [6.0, 0.0]], [1 / 3, 1 / 3, 1 / 9]),
        # Every step raises the loss: a sixteenth is taken of the one that raises it least.
        (FedIF, [[-9.0, -9.0], [-8.0, -9.0], [-9.0, -8.0]], 1 / 16),
        # Each is replaced by the mean of the two nearest: all are the clients' own.
        (with_stages(NearestNeighbours(0.34)), [[1.0, 0.0], [1.2, 0.0], [0.0, 3.0]], 1.0),
        # Shortened to a third first, which goes into both means that it is in.
        (
            with_stages(Clip(2.0), NearestNeighbours(0.34)),
            [[1.0, 0.0], [1.0, 0.0], [6.0, 0.0]],
            [1 / 2, 1 / 3, 1 / 18],
        ),
        (FedIF, [[0.0, 0.0]] * 3, 0.0),
    ],
)
def test_what_was_applied_counts_not_what_was_weighed(strategy, steps, coefficients):
    (found,) = attributed(strategy, Movers(steps)).rounds
    applied = [c.coefficient for c in found.clients]
    if isinstance(coefficients, float):
        applied = sum(applied)
    assert applied == pytest.approx(coefficients)
    assert found.attributed == pytest.approx(found.decrease, rel=ROUNDING)


@pytest.mark.parametrize(
    ("strategy", "setup", "words"),
    [
        (lambda v, **base: RobustRule(Median(), **base), {}, "RobustRule combines coordinate by"),
        (fedavg, {"trainable_keys": []}, r"Setup\(trainable_keys=validation\.para"),
        (with_stages(FedYogi()), {}, "moves each parameter by itself"),
    ],
)
def test_what_cannot_be_attributed_is_refused_before_any_client_works(strategy, setup, words):
    asked: list[int] = []
    clients = alike(lambda *_: asked.append(1))
    with pytest.raises(ConfigError, match=words):
        attributed(strategy, clients, setup=setup)
    assert not asked


def test_changes_of_buffers_are_the_remainder():
    held_out = Validation(
        Shifted(), torch.ones(1, 1), torch.full((1, 1), 4.0), loss_fn=squared, device="cpu"
    )
    # Every client adds 1 to both: the loss falls from (0 - 4)^2 to (2 - 4)^2, half by each.
    (found,) = attributed(fedavg, alike(one_more), held_out=held_out, model=Shifted()).rounds
    found_by_each = found.decrease, found.attributed, found.remainder
    assert found_by_each == pytest.approx((12.0, 6.0, 6.0), rel=ROUNDING)


def test_classes_add_up_to_the_contribution():
    torch.manual_seed(0)
    inputs, targets = torch.randn(12, 2), torch.tensor([0, 1, 2, 2] * 3)
    held_out = Validation(nn.Linear(2, 3), inputs, targets, device="cpu", batch_size=5)
    movers = Movers(np.random.default_rng(0).normal(size=(3, 9)).tolist())
    run = partial(attributed, fedavg, movers, 2, "simpson", held_out=held_out)
    callback = run(model=nn.Linear(2, 3), per_class=True)
    assert callback.num_classes == 3
    for found in callback.rounds:
        for client in found.clients:
            rounding = ROUNDING * found.loss_before
            assert sum(client.classes) == pytest.approx(client.contribution, abs=rounding)
    with pytest.raises(ValuationError, match="no classes to tell contributions apart"):
        PathAttribution(validation(), per_class=True)


def test_nothing_is_contributed_to_a_class_that_weighs_nothing(caplog):
    caplog.set_level("INFO")
    torch.manual_seed(0)
    inputs, targets = torch.randn(12, 2), torch.tensor([0, 1, 2, 2] * 3)
    loss_fn = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.0, 2.0]))
    model = nn.Linear(2, 3)
    held_out = Validation(model, inputs, targets, loss_fn=loss_fn, device="cpu")
    movers = Movers(np.random.default_rng(0).normal(size=(3, 9)).tolist())
    callback = attributed(fedavg, movers, held_out=held_out, model=model, per_class=True)
    assert callback.class_weights == pytest.approx([3 / 15, 0.0, 12 / 15])
    for client in callback.rounds[0].clients:
        assert client.classes[1] == 0.0
        rounding = ROUNDING * callback.rounds[0].loss_before
        assert sum(client.classes) == pytest.approx(client.contribution, abs=rounding)
    assert "the loss gives the classes [1] weight 0" in caplog.text


def test_blocks_add_up_and_change_nothing_else():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(60, 2, generator=generator)
    targets = inputs @ torch.tensor([[4.0], [2.0]]) + torch.randn(60, 1, generator=generator)
    movers = Movers([[1.0, 0.5], [0.5, -1.0], [0.0, 0.0]])
    held_out = Validation(point(), inputs, targets, loss_fn=squared, device="cpu")
    without = attributed(fedavg, movers, 3, "simpson", held_out=held_out)
    split = attributed(fedavg, movers, 3, "simpson", held_out=held_out, blocks=20)
    assert split.block_weights == pytest.approx([1 / 20] * 20)
    for ours, theirs in zip(split.rounds, without.rounds, strict=True):
        assert values(ours) == pytest.approx(values(theirs), rel=100 * ROUNDING)
        for client in ours.clients:
            assert sum(client.blocks) == pytest.approx(client.contribution, rel=1e-12, abs=1e-15)
        assert set(ours.clients[2].blocks) == {0.0}  # It sent the model back.


def test_a_client_that_claims_another_partition_has_one_sum(monkeypatch):
    on_step = PathAttribution.on_step

    def claimed(callback, step):
        of_round = step.updates.server_round
        nodes = [replace(n, is_simulated=False, partition_id=of_round) for n in step.nodes]
        on_step(callback, replace(step, nodes=nodes))

    monkeypatch.setattr(PathAttribution, "on_step", claimed)
    movers = Movers([[1.0, 0.0], [0.0, 1.0]])
    _, second = attributed(with_stages(FedAvgM(0.5, 0.5)), movers, 2).rounds
    assert [(c.partition_id, c.client_id) for c in second.clients] == [(2, 1000), (2, 1001)]
    assert second.attributed == pytest.approx(second.decrease, rel=100 * ROUNDING)


# -- with bounded credit

LONG = Movers([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])


def credited(movers, rounds=1, *, stages=(), **bounds):
    return attributed(with_stages(*stages), movers, rounds, bounds=CreditBounds(**bounds))


@pytest.mark.parametrize(("rounds", "stages"), [(1, ()), (3, [FedAvgM(0.5, 0.5)])])
def test_an_update_three_times_as_long_is_credited_for_its_bound(rounds, stages):
    for found in credited(LONG, rounds, stages=stages, length=1.5, borrowed=0, weight=0).rounds:
        one, two, long = found.clients
        assert [one.credited, two.credited] == [one.contribution, two.contribution]
        assert long.credited == pytest.approx(long.contribution / 2, rel=10 * ROUNDING)
        assert long.credit.length == pytest.approx(3.0, rel=ROUNDING)
        # What members contribute adds up as ever.
        assert found.attributed == pytest.approx(found.decrease, rel=100 * ROUNDING)


@pytest.mark.parametrize(
    ("strategy", "steps", "lengths"),
    [
        # Shortened to twice the median length, though its weight is 0.
        (partial(FedIF, stages=[Clip(2.0)]), [[1.0, 0.0], [0.0, 1.0], [-6.0, 0.0]], [1, 1, 2]),
        # Shortened first, then put into means of two.
        (
            with_stages(Clip(2.0), NearestNeighbours(0.34)),
            [[1.0, 0.0], [1.0, 0.0], [6.0, 0.0]],
            [1, 1, 2],
        ),
        # All are shortened, and the step is taken by other weights than the strategy's.
        (
            with_stages(Clip(0.25), LossBound(validation(), 0.0)),
            [[-9.0, 0.0], [-9.0, 0.0], [9.0, 0.0]],
            [1, 1, 1],
        ),
        # A rule that bounds lengths by itself: all are as long as the median, whatever was sent.
        (
            lambda _, **base: RobustRule(Flame(noise=0.0), **base),
            [[1.0, 0.0], [1.0, 0.0], [6.0, 0.0]],
            [1, 1, 1],
        ),
        # With means of two in their place, of lengths 1, 1 and 3.5, which it cuts to 1. The first
        # is in all of them, the second in two, the last in the long one.
        (
            lambda _, **base: RobustRule(
                Flame(noise=0.0), stages=[NearestNeighbours(0.34)], **base
            ),
            [[1.0, 0.0], [1.0, 0.0], [6.0, 0.0]],
            [16 / 21, 1, 12 / 7],
        ),
        # A fraction of the step is taken; who has no weight sent nothing longer than the others.
        (partial(FedIF, stages=[LossBound()]), [[-9.0, -9.0], [-8.0, -9.0], [-9.0, -8.0]], None),
    ],
)
def test_lengths_are_those_that_the_round_used(strategy, steps, lengths):
    callback = attributed(strategy, Movers(steps), bounds=CreditBounds())
    (found,) = callback.rounds
    if lengths is None:
        own = [math.hypot(*step) for step in steps]
        lengths = [length / sorted(own)[1] for length in own]
    assert [c.credit.length for c in found.clients] == pytest.approx(lengths, rel=ROUNDING)


def doubled(outputs, targets):
    return 2 * ((outputs - targets) ** 2).mean()  # Of four: half of the sum, as it is of two.


def four_parameters() -> Validation:
    """Four parameters: with fewer, no last step is remembered."""
    targets = torch.tensor([[4.0], [2.0], [0.0], [0.0]])
    return Validation(point(4), torch.eye(4), targets, loss_fn=doubled, device="cpu")


def of_four(movers, beside=()):
    """Attribute two rounds with four parameters."""
    held_out = four_parameters()
    bounds = CreditBounds(length=0, borrowed=1.5)
    return attributed(
        fedavg, movers, 2, bounds=bounds, beside=beside, held_out=held_out, model=point(4)
    )


# All move alike; the first two move across the mean (1, 0, 0, 0) as well.
ALONG = [[1.0, 0.2, 0.0, 0.0], [1.0, -0.2, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]


def test_the_last_step_again_is_credited_with_nothing():
    first, second = of_four(Movers(ALONG)).rounds
    assert all(c.credited == c.contribution for c in first.clients)
    # The third has nothing of its own beside the step.
    assert second.clients[2].credited == pytest.approx(0.0, abs=1e-6)
    assert second.clients[2].contribution > 0.1
    assert second.clients[2].credit.borrowed == 99.0


def test_a_run_that_goes_on_attributes_as_one_that_never_stopped():
    whole, half = (credited(LONG, rounds, length=1.5) for rounds in (2, 1))
    state, lines = half.state_dict(1), half.lines(0, 1)
    again = PathAttribution(validation(), "trapezoid", bounds=CreditBounds(length=1.5))
    again.load_state_dict(state, lines, 1)
    assert again.rounds == half.rounds == whole.rounds[:1]
    assert str(again.state_dict(1)) == str(state)
    for rule, words in (
        ("trapezoid", "credit has bounds in the"),
        ("gauss2", "attribution has rule"),
    ):
        with pytest.raises(ValueError, match=words):
            PathAttribution(validation(), rule).load_state_dict(state, lines, 1)


def started(attribution, rounds=1):
    """Run rounds of a new strategy that has this attribution."""
    strategy = fedavg(attribution.validation, callbacks=[attribution], **BASE)
    play(strategy, point(), LONG, rounds)
    return strategy


@pytest.mark.parametrize(("owner", "step"), [(PastSteps, "after"), (PathAttribution, "_attribute")])
def test_a_step_that_an_error_interrupted_counts_once(monkeypatch, owner, step):
    """Memory runs out in round 2, once its updates have been compared; it is run again."""
    movers = Movers(ALONG)
    whole = of_four(movers)
    held_out = four_parameters()
    again = PathAttribution(held_out, "trapezoid", bounds=CreditBounds(length=0, borrowed=1.5))
    setup = Setup(device="cpu", trainable_keys=held_out.parameter_names)
    strategy = FedAvg(callbacks=[again], **BASE | {"setup": setup})
    play(strategy, point(4), movers)

    def out_of_memory(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, out_of_memory)
        with pytest.raises(MemoryError):
            strategy.start(LocalGrid(movers, 3), strategy.model.record, num_rounds=1)
    strategy.start(LocalGrid(movers, 3), strategy.model.record, num_rounds=1)
    assert again.rounds == whole.rounds
    assert str(again.state_dict(2)) == str(whole.state_dict(2))


def test_an_attribution_is_not_another_strategy_s_too():
    """Contributions would be sums over both runs, credit bounded by what the other one saw."""
    attribution = PathAttribution(validation(), bounds=CreditBounds())
    first = started(attribution)
    with pytest.raises(ConfigError, match=r"^PathAttribution remembers the rounds of another"):
        started(attribution)
    # Its own strategy goes on with it.
    first.start(LocalGrid(LONG, 3), first.model.record, num_rounds=1)
    assert [found.server_round for found in attribution.rounds] == [1, 2]
    bounded = PathAttribution(validation(), bounds=attribution.bounds)
    with pytest.raises(ConfigError, match=r"^CreditBounds remembers the rounds of another"):
        started(bounded)


def test_bounds_of_credit_do_not_hold_their_attribution():
    """It holds the strategy, and so the updates of a round."""
    bounds = CreditBounds()
    attribution = PathAttribution(validation(), bounds=bounds)
    started(attribution)
    assert all(held is not attribution for held in vars(bounds).values())


class Failing(Movers):
    """Some clients raise an error: by round, which."""

    def __init__(self, steps: list[list[float]], failing: dict[int, range]) -> None:
        super().__init__(steps)
        self.failing = failing

    def train(self, message, partition_id):
        if partition_id in self.failing.get(round_of(message), ()):
            raise RuntimeError("no data today")
        return super().train(message, partition_id)


def test_a_failed_round_has_no_clients_and_no_decrease():
    movers = Failing([[1.0, 0.5], [0.5, 1.0], [0.0, 0.0]], failing={2: range(1)})
    first, failed, last = attributed(fedavg, movers, 3, setup={"min_valid_replies": 3}).rounds
    assert failed.clients == ()
    assert failed.decrease == failed.attributed == failed.remainder == 0.0
    assert (failed.slope, failed.smoothness, failed.bound_held) == (None, None, None)
    assert failed.loss_before == failed.loss_after == first.loss_after == last.loss_before


def test_a_round_that_takes_the_last_step_back_takes_its_contributions_back():
    # Everybody fails on the model of round 1: it may be why, and is given up.
    movers = Failing([[1.0, 0.5], [0.5, 1.0], [0.0, 0.0]], failing={2: range(3)})
    callback = attributed(fedavg, movers, 3)
    first, failed, last = callback.rounds
    assert first.attributed > 0
    assert values(failed) == [-value for value in values(first)]
    assert failed.decrease == -first.decrease
    gained = first.loss_before - last.loss_after
    assert sum(callback.contributions.values()) == pytest.approx(gained, rel=ROUNDING)


ACROSS = [[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]]  # The mean step is (1, 1).
ALL_THREE = {"min_valid_replies": 3}


@pytest.mark.parametrize("between", [0, 1, 2])
def test_a_step_is_taken_back_after_rounds_without_one(between):
    """From (0, 0) to (1, 1) and (2, 2), where the loss is 10, 5 and 2, and back to (1, 1).

    Mean gradients are -(3.5, 1.5) and -(2.5, .5); what the second step gave, the last round takes.
    """
    last = 3 + between
    one_fails = {number: range(1) for number in range(3, last)}  # Too few replies: no suspicion.
    movers = Failing(ACROSS, failing={**one_fails, last: range(3)})
    callback = attributed(fedavg, movers, last, setup=ALL_THREE)
    assert [len(found.clients) for found in callback.rounds] == [3, 3, *[0] * between, 3]
    assert values(callback.rounds[1]) == pytest.approx([2.5, 0.5, 0.0], rel=ROUNDING)
    assert values(callback.rounds[-1]) == [-value for value in values(callback.rounds[1])]
    assert callback.rounds[-1].remainder == pytest.approx(0.0, abs=10 * ROUNDING)
    assert list(callback.contributions.values()) == pytest.approx([3.5, 1.5, 0.0], rel=ROUNDING)


@pytest.mark.parametrize("between", [0, 1])
def test_momentum_of_a_step_that_was_taken_back_later_is_nobodys(between):
    one_fails = {number: range(1) for number in range(3, 3 + between)}
    movers = Failing(ACROSS, failing={**one_fails, 3 + between: range(3)})
    stages = with_stages(FedAvgM(0.5, 0.5))
    callback = attributed(stages, movers, 4 + between, setup=ALL_THREE)
    for found in callback.rounds:
        assert found.attributed == pytest.approx(found.decrease, rel=100 * ROUNDING)
    # (0, 0), (.5, .5), (1.25, 1.25), back to (.5, .5), and again (1.25, 1.25).
    gained = 10 - ((4 - 1.25) ** 2 + (2 - 1.25) ** 2) / 2
    assert sum(callback.contributions.values()) == pytest.approx(gained, rel=ROUNDING)


class SkipsRound(FedAvg):
    """Draws nobody in one round."""

    skipped = 0

    def select(self, nodes, server_round):
        if server_round == self.skipped:
            return []
        return super().select(nodes, server_round)


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize(("skipped", "last_step"), [(2, 3), (3, 2)])
def test_a_step_before_or_after_a_round_that_asked_nobody_is_taken_back(
    skipped, last_step, is_resumed
):
    """Everybody fails in round 4 on the model of the last step."""
    movers = Failing(ACROSS, failing={4: range(3)})
    setup = Setup(device="cpu", trainable_keys=validation().parameter_names, **ALL_THREE)
    callback = PathAttribution(validation(), "trapezoid")
    strategy = SkipsRound(callbacks=[callback], **BASE | {"setup": setup})
    strategy.skipped = skipped
    play(strategy, point(), movers, 3)
    if is_resumed:
        state, lines = callback.state_dict(3), callback.lines(0, 3)
        callback.load_state_dict(state, lines, 3)
    strategy.start(LocalGrid(movers, 3), strategy.model.record, num_rounds=1)
    assert values(callback.rounds[skipped - 1]) == []
    given = values(callback.rounds[last_step - 1])
    assert given == pytest.approx([2.5, 0.5, 0.0], rel=ROUNDING)
    assert values(callback.rounds[-1]) == [-value for value in given]


class TakesBack(Callback):
    """Cannot bear the model of one round, as an evaluation."""

    def __init__(self, server_round: int) -> None:
        self.server_round = server_round

    def on_model(self, server_round, model):
        if server_round == self.server_round:
            model.take_back()


def test_an_evaluation_after_a_round_without_a_step_takes_the_last_one_back(caplog):
    movers = Failing(ACROSS, failing={3: range(1)})
    callback = attributed(fedavg, movers, 4, setup=ALL_THREE, beside=(TakesBack(3),))
    _, second, third, fourth = callback.rounds
    assert values(third) == [-value for value in values(second)]
    assert (third.loss_before, third.loss_after) == (second.loss_after, second.loss_before)
    assert fourth.loss_before == third.loss_after
    # It ends at (2, 2), the loss at 2.
    assert sum(callback.contributions.values()) == pytest.approx(8.0, rel=ROUNDING)
    assert "round 3: the last step was taken back" in caplog.text


def test_a_checkpoint_does_not_carry_on_what_an_evaluation_took_back():
    movers = Movers(ACROSS)
    stages = with_stages(FedAvgM(0.5, 0.5))
    # The evaluation comes first, as in a run with records.
    held_out = validation()
    callback = PathAttribution(held_out, "trapezoid")
    names = {"trainable_keys": held_out.parameter_names}
    base = BASE | {"setup": Setup(device="cpu", **names)}
    play(stages(held_out, callbacks=[TakesBack(2), callback], **base), point(), movers, 2)
    callback.lines(0, 2)
    assert len(callback.state_dict(2)["carried"]) == 1  # Of round 1 alone.


def test_a_loss_that_is_not_finite_is_nobodys(caplog):
    held_out = validation(loss_fn=lambda outputs, targets: squared(1e20 * outputs, targets))
    (found,) = attributed(fedavg, Movers([[60.0, 60.0]] * 3), held_out=held_out).rounds
    assert found.clients == ()
    assert math.isnan(found.loss_after)
    assert (found.decrease, found.remainder) == (0.0, 0.0)
    assert "round 1 cannot be attributed: no finite loss" in caplog.text


@pytest.mark.parametrize("not_finite", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_says_nothing_about_the_bound(not_finite):
    def loses_itself(outputs, targets):
        loss = squared(outputs, targets)
        if outputs.sum() > 1:
            return loss + not_finite  # The gradient is as before.
        return loss

    callback = attributed(fedavg, Movers(ACROSS), held_out=validation(loss_fn=loses_itself))
    (found,) = callback.rounds
    assert not math.isfinite(found.loss_after)
    assert (found.slope, found.smoothness, found.bound_held) == (None, None, None)


def test_a_step_that_is_taken_back_is_nobodys(caplog):
    movers = Movers([[1.0, 1.0]] * 3)
    first, second = attributed(fedavg, movers, 2, beside=(TakesBack(1),)).rounds
    assert (first.clients, first.decrease) == ((), 0.0)
    assert second.loss_before == first.loss_before
    assert second.attributed == pytest.approx(second.decrease, rel=ROUNDING)
    assert "round 1: its step was taken back" in caplog.text


def test_nobody_borrows_from_a_step_that_was_taken_back_before_it_was_sent():
    # As in round 1, the third moves along the mean of all; nobody has seen that step.
    taken_back, second = of_four(Movers(ALONG), beside=(TakesBack(1),)).rounds
    assert taken_back.clients == ()
    # From (0, 0) to (1, 0): the mean gradient is -(3.5, 2).
    assert values(second) == pytest.approx([3.9 / 3, 3.1 / 3, 3.5 / 3], rel=ROUNDING)
    assert [c.credited for c in second.clients] == values(second)
    assert [c.credit.borrowed for c in second.clients] == [0.0, 0.0, 0.0]


class OnlyOnce(Movers):
    """The last client sends its update in round 1 only; later it returns the model."""

    def train(self, message, partition_id):
        sent_again = round_of(message) > 1 and partition_id == 2
        return super().train(message, 0 if sent_again else partition_id)


def test_momentum_pays_those_who_sent_it():
    callback = attributed(
        with_stages(FedAvgM(0.5, 0.5)), OnlyOnce([[0.0, 0.0], [0.0, 0.0], [3.0, 0.0]]), 4
    )
    for found in callback.rounds:
        # The step of round 1 goes on, halved: all of what it gains is the last client's.
        assert values(found)[:2] == [0.0, 0.0]
        assert values(found)[2] == pytest.approx(found.decrease, rel=100 * ROUNDING)
        assert found.decrease > 0
    # x goes to 0.5, 0.75, 0.875, 0.9375: contributions over all rounds are what was gained.
    gained = (16 - (4 - 0.9375) ** 2) / 2
    assert sum(callback.contributions.values()) == pytest.approx(gained, rel=ROUNDING)


def test_momentum_of_a_step_that_was_taken_back_is_nobodys():
    # Round 2 fails on every client: round 1's step goes, and the mean with it.
    movers = Failing([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], failing={2: range(3)})
    callback = attributed(with_stages(FedAvgM(0.5, 0.5)), movers, 4)
    assert [len(found.clients) for found in callback.rounds] == [3, 3, 3, 3]
    for found in callback.rounds:
        assert found.attributed == pytest.approx(found.decrease, rel=100 * ROUNDING)


class Overshoots(Failing):
    """All send ten times as much in round 3."""

    def train(self, message, partition_id):
        reply = super().train(message, partition_id)
        if round_of(message) != 3:
            return reply
        longer = Movers([[10 * value for value in step] for step in self.steps])
        return longer.train(message, partition_id)


@pytest.mark.parametrize("evaluation", [False, True])
def test_momentum_goes_on_where_the_step_that_began_anew_was_taken_back(evaluation):
    """From (0, 0) to (.5, .5) and (1.25, 1.25), on to (2.5, 2.5) anew, and back.

    In round 3 a step of (10, 10) misses the bound: half of a quarter of it is taken, without
    momentum. Once it is gone, the step is (1/2 + 1/4 + 1/8) (1, 1).
    """
    failing = {} if evaluation else {4: range(3)}
    beside = (TakesBack(3),) if evaluation else ()
    bounded = with_stages(LossBound(validation(), descent_steps=0), FedAvgM(0.5, 0.5))
    callback = attributed(bounded, Overshoots(ACROSS, failing), 5 - evaluation, beside=beside)
    *_, last = callback.rounds
    assert last.loss_before == ((4 - 1.25) ** 2 + (2 - 1.25) ** 2) / 2
    assert last.loss_after == ((4 - 2.125) ** 2 + (2 - 2.125) ** 2) / 2
    assert last.attributed == pytest.approx(last.decrease, rel=100 * ROUNDING)


def test_a_step_against_the_one_step_bound_by_hand():
    """The mean step is (.5, .5) from a loss of 10 to one of 7.25; see the first test.

    The gradients are (-4, -2) and (-3.5, -1.5): the loss is |w - (4, 2)|^2 / 2, so that L = 1.
    """
    movers = Movers([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]], [10, 10, 20])
    for rule in ("trapezoid", "simpson"):
        (found,) = attributed(fedavg, movers, rule=rule).rounds
        assert found.slope == pytest.approx(-3.0, rel=ROUNDING)
        assert found.smoothness == pytest.approx(1.0, rel=ROUNDING)
        assert found.descent.length**2 == pytest.approx(0.5, rel=ROUNDING)
        # As for every quadratic loss it is reached: -3 + 1/4.
        assert found.descent.bound() == pytest.approx(-2.75, rel=ROUNDING)
        assert found.bound_held


def test_the_bound_fails_where_the_gradient_turns_on_the_way_and_back():
    """From phase pi / 4 of a wave to 3 pi / 4: the slope is the same, and steeper between them."""
    held_out = validation(loss_fn=waves, target=(0.0, -math.pi / 12))
    movers = Movers([[0.0, math.pi / 6]] * 2)
    (found,) = attributed(fedavg, movers, held_out=held_out).rounds
    assert found.smoothness == pytest.approx(0.0, abs=1e-5)
    # Half of 3 sin(pi / 4) by pi / 6; half of cos(pi / 4) - cos(3 pi / 4).
    assert found.slope == pytest.approx(math.sqrt(0.5) * math.pi / 4, rel=1e-5)
    assert -found.decrease == pytest.approx(math.sqrt(0.5), rel=1e-5)
    assert found.bound_held is False
