"""Path attribution beside strategies: a loss that is worked out by hand, real rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedif_flower import FedAvg, FedIF, Median, PathAttribution, RobustRule, Validation
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import Clip, NearestNeighbours
from fedif_flower.strategies import Setup
from fedif_flower.valuation import InfluenceValuation
from tests.strategies.attributing import (
    ROUNDING,
    attributed,
    fedavg,
    squared,
    validation,
    values,
)
from tests.strategies.hostile import Clients, step_reply
from tests.strategies.lines import Movers, point


def test_a_round_of_fedavg_by_hand():
    # One client moves x by 2, one y by 2; halves apply: (1, 1). Mean slopes 3.5 and 1.5.
    callback = attributed(fedavg, Movers([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]], [10, 10, 20]))
    (found,) = callback.rounds
    # 1/4 each: steps (0.5, 0.5), mean gradients -(3.75, 1.75).
    assert values(found) == pytest.approx([0.5 * 3.75, 0.5 * 1.75, 0.0], rel=ROUNDING)
    assert values(found)[2] == 0.0
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
    assert sum(callback.contributions.values()) == pytest.approx(gained, rel=ROUNDING)
    assert list(callback.contributions) == sorted(
        callback.contributions, key=callback.contributions.get, reverse=True
    )


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
    targets = torch.tensor([[4.0], [2.0]])
    held_out = Counted(point(), torch.eye(2), targets, loss_fn=squared, device="cpu")
    base = {"fraction_evaluate": 0.0, "stages": (), "setup": Setup(device="cpu")}
    callback = PathAttribution(held_out, rule)
    strategy = FedIF(InfluenceValuation(held_out), callbacks=[callback], **base)
    movers = Movers([[0.5, 0.1], [0.1, 0.4], [-0.1, 0.2]])
    strategy.start(LocalGrid(movers, 3), model_arrays(point()), num_rounds=4)
    assert held_out.passes == 4 + more
    assert len(callback.rounds) == 4


def waves(outputs: Tensor, targets: Tensor) -> Tensor:
    return (1 - torch.cos(3 * (outputs - targets))).mean()


def test_an_adaptive_rule_is_refined_until_contributions_add_up():
    found, passes = {}, {}
    for rule in ("simpson", "adaptive"):
        held_out = Counted(
            point(), torch.eye(2), torch.tensor([[1.0], [2.0]]), loss_fn=waves, device="cpu"
        )
        callback = PathAttribution(held_out, rule)
        strategy = fedavg(
            held_out, callbacks=[callback], fraction_evaluate=0.0, setup=Setup(device="cpu")
        )
        movers = Movers([[4.0, 0.0], [0.0, 6.0]])
        strategy.start(LocalGrid(movers, 2), model_arrays(point()), num_rounds=1)
        (found[rule],) = callback.rounds
        passes[rule] = held_out.passes
    size = sum(abs(client.contribution) for client in found["adaptive"].clients)
    assert abs(found["adaptive"].remainder) < 0.02 * size
    assert abs(found["simpson"].remainder) > 0.2 * size
    assert passes["simpson"] == 3
    assert passes["adaptive"] in (5, 9)  # Twice or four times as many parts.


def test_what_was_applied_counts_not_what_was_weighed():
    # The long update is shortened to twice the median length: a third of it is applied.
    movers = Movers([[1.0, 0.0], [0.0, 1.0], [6.0, 0.0]])
    callback = attributed(lambda v, **base: fedavg(v, stages=[Clip(2.0)], **base), movers)
    (found,) = callback.rounds
    assert [c.coefficient for c in found.clients] == pytest.approx([1 / 3, 1 / 3, 1 / 9])
    assert found.attributed == pytest.approx(found.decrease, rel=ROUNDING)


def test_of_a_step_that_was_shortened_the_part_that_was_taken_is_attributed():
    # Every step raises the loss: a sixteenth is taken of the one that raises it least.
    movers = Movers([[-9.0, -9.0], [-8.0, -9.0], [-9.0, -8.0]])
    callback = attributed(lambda v, **base: FedIF(v, **base), movers)
    (found,) = callback.rounds
    assert sum(c.coefficient for c in found.clients) == pytest.approx(1 / 16)
    assert found.decrease < 0
    assert found.attributed == pytest.approx(found.decrease, rel=ROUNDING)


def test_a_round_that_leads_nowhere_is_nobodys():
    movers = Movers([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    callback = attributed(lambda v, **base: FedIF(v, **base), movers)
    (found,) = callback.rounds
    assert found.clients == ()
    assert found.decrease == 0.0


def test_a_rule_without_coefficients_is_refused_before_any_client_works():
    asked: list[int] = []

    def count(message, context):
        asked.append(1)
        return step_reply(message, 1.0)

    with pytest.raises(ConfigError, match="RobustRule combines coordinate by coordinate"):
        attributed(
            lambda v, **base: RobustRule(Median(), **base),
            Clients(dict.fromkeys(range(3), count)),
        )
    assert not asked


def test_another_vector_than_the_validation_sets_is_refused():
    with pytest.raises(ConfigError, match=r"trainable_keys=validation\.parameter_names"):
        attributed(
            lambda v, **base: FedAvg(**base | {"setup": replace(base["setup"], trainable_keys=[])}),
            Movers([[1.0, 0.0]] * 3),
        )


def test_changes_of_buffers_are_the_remainder():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.register_buffer("shift", torch.zeros(1))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * self.weight + self.shift

    held_out = Validation(
        Shifted(), torch.ones(1, 1), torch.full((1, 1), 4.0), loss_fn=squared, device="cpu"
    )
    callback = PathAttribution(held_out, "trapezoid")
    strategy = FedAvg(
        fraction_evaluate=0.0,
        callbacks=[callback],
        setup=Setup(trainable_keys=["weight"], device="cpu"),
    )
    # Every client adds 1 to both: the loss falls from (0 - 4)^2 to (2 - 4)^2, half by each.
    clients = Clients(dict.fromkeys(range(3), lambda message, _: step_reply(message, 1.0)))
    strategy.start(LocalGrid(clients, 3), model_arrays(Shifted()), num_rounds=1)
    (found,) = callback.rounds
    assert found.decrease == pytest.approx(12.0, rel=ROUNDING)
    assert found.attributed == pytest.approx(6.0, rel=ROUNDING)
    assert found.remainder == pytest.approx(6.0, rel=ROUNDING)


def class_validation() -> Validation:
    torch.manual_seed(0)
    inputs, targets = torch.randn(12, 2), torch.tensor([0, 1, 2, 2] * 3)
    return Validation(nn.Linear(2, 3), inputs, targets, device="cpu", batch_size=5)


def test_classes_add_up_to_the_contribution():
    held_out = class_validation()
    callback = PathAttribution(held_out, "simpson", per_class=True)
    strategy = FedAvg(
        fraction_evaluate=0.0,
        callbacks=[callback],
        setup=Setup(trainable_keys=held_out.parameter_names, device="cpu"),
    )
    generator = np.random.default_rng(0)
    steps = generator.normal(size=(3, 9)).tolist()
    strategy.start(LocalGrid(Movers(steps), 3), model_arrays(nn.Linear(2, 3)), num_rounds=2)
    assert callback.num_classes == 3
    for found in callback.rounds:
        for client in found.clients:
            assert sum(client.classes) == pytest.approx(
                client.contribution, abs=ROUNDING * found.loss_before
            )
    with pytest.raises(ValuationError, match="no classes to tell contributions apart"):
        PathAttribution(validation(), per_class=True)


def test_neighbour_mixing_is_undone():
    # Of three updates each is replaced by the mean of the two nearest: all are the clients' own.
    movers = Movers([[1.0, 0.0], [1.2, 0.0], [0.0, 3.0]])
    callback = attributed(
        lambda v, **base: fedavg(v, stages=[NearestNeighbours(0.34)], **base), movers
    )
    (found,) = callback.rounds
    assert sum(c.coefficient for c in found.clients) == pytest.approx(1.0)
    assert found.attributed == pytest.approx(found.decrease, rel=ROUNDING)


def test_blocks_add_up_and_change_nothing_else():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(60, 2, generator=generator)
    targets = inputs @ torch.tensor([[4.0], [2.0]]) + torch.randn(60, 1, generator=generator)
    movers = [[1.0, 0.5], [0.5, -1.0], [0.0, 0.0]]
    found = []
    for blocks in (0, 20):
        held_out = Validation(point(), inputs, targets, loss_fn=squared, device="cpu")
        callback = PathAttribution(held_out, blocks=blocks)
        strategy = fedavg(
            held_out, callbacks=[callback], fraction_evaluate=0.0, setup=Setup(device="cpu")
        )
        strategy.start(LocalGrid(Movers(movers), 3), model_arrays(point()), num_rounds=3)
        found.append(callback)
    without, split = found
    assert split.block_weights == pytest.approx([1 / 20] * 20)
    for ours, theirs in zip(split.rounds, without.rounds, strict=True):
        assert values(ours) == pytest.approx(values(theirs), rel=100 * ROUNDING)
        for client in ours.clients:
            assert sum(client.blocks) == pytest.approx(client.contribution, rel=1e-12, abs=1e-15)
        assert set(ours.clients[2].blocks) == {0.0}  # It sent the model back.
    lines = split.lines(0, 3)
    other = PathAttribution(split.validation, blocks=20)
    other.load_state_dict(split.state_dict(3), lines, 3)
    assert other.rounds == split.rounds
    with pytest.raises(ValueError, match="its attribution has blocks"):
        PathAttribution(split.validation).load_state_dict(split.state_dict(3), lines, 3)
