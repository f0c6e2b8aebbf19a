"""Path attribution beside strategies: a loss that is worked out by hand, real rounds."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedif_flower import FedAvg, FedIF, PathAttribution, Validation
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import Aggregation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.attributed import RoundAttribution
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.krum import Krum
from fedif_flower.strategies.registry import STRATEGIES
from tests.strategies.hostile import Clients, step_reply
from tests.strategies.lines import Movers, point
from tests.tolerance import rounding

ROUNDING = rounding(torch.float32)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


def validation(**options) -> Validation:
    """Loss (x - 4)^2 / 2 + (y - 2)^2 / 2 of two parameters (x, y): 10 at the start."""
    targets = torch.tensor([[4.0], [2.0]])
    return Validation(point(), torch.eye(2), targets, loss_fn=squared, device="cpu", **options)


def attributed(strategy_of, movers: Movers | Clients, rounds: int = 1, rule: str = "trapezoid"):
    """Run rounds and return what was attributed."""
    held_out = validation()
    callback = PathAttribution(held_out, rule)
    strategy = strategy_of(held_out, callbacks=[callback], fraction_evaluate=0.0, device="cpu")
    grid = LocalGrid(movers, len(getattr(movers, "steps", [0, 0, 0])))
    strategy.start(grid, model_arrays(point()), num_rounds=rounds)
    return callback


def fedavg(held_out: Validation, **base) -> FedAvg:
    return FedAvg(trainable_keys=held_out.parameter_names, **base)


def values(found: RoundAttribution) -> list[float]:
    return [client.contribution for client in found.clients]


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


@pytest.mark.parametrize("rule", ["trapezoid", "simpson", "gauss2"])
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
    ("rule", "more"), [("trapezoid", 1), ("simpson", 1 + 4), ("gauss2", 1 + 8)]
)
@pytest.mark.parametrize("overlap", [True, False])
def test_fedif_takes_no_gradient_twice(rule, more, overlap):
    targets = torch.tensor([[4.0], [2.0]])
    held_out = Counted(point(), torch.eye(2), targets, loss_fn=squared, device="cpu")
    base = {"fraction_evaluate": 0.0, "device": "cpu", "update_clipping": 0.0}
    callback = PathAttribution(held_out, rule)
    strategy = FedIF(held_out, overlap=overlap, callbacks=[callback], **base)
    movers = Movers([[0.5, 0.1], [0.1, 0.4], [-0.1, 0.2]])
    strategy.start(LocalGrid(movers, 3), model_arrays(point()), num_rounds=4)
    assert held_out.passes == 4 + more
    assert len(callback.rounds) == 4


def test_what_was_applied_counts_not_what_was_weighed():
    # The long update is shortened to twice the median length: a third of it is applied.
    movers = Movers([[1.0, 0.0], [0.0, 1.0], [6.0, 0.0]])
    callback = attributed(lambda v, **base: fedavg(v, update_clipping=2.0, **base), movers)
    (found,) = callback.rounds
    assert [c.coefficient for c in found.clients] == pytest.approx([1 / 3, 1 / 3, 1 / 9])
    assert found.attributed == pytest.approx(found.decrease, rel=ROUNDING)


def test_a_step_that_is_not_taken_is_nobodys():
    # FedIF keeps the model where every step raises the loss: its bounds apply 0 of each update.
    movers = Movers([[-9.0, -9.0], [-8.0, -9.0], [-9.0, -8.0]])
    callback = attributed(lambda v, **base: FedIF(v, **base), movers)
    (found,) = callback.rounds
    assert [c.coefficient for c in found.clients] == [0.0, 0.0, 0.0]
    assert values(found) == [0.0, 0.0, 0.0]
    assert found.decrease == 0.0


def test_krum_attributes_to_the_one_it_chose():
    movers = Movers([[1.0, 0.0], [1.1, 0.0], [0.0, 5.0]])
    callback = attributed(lambda v, **base: Krum(trainable_keys=v.parameter_names, **base), movers)
    (found,) = callback.rounds
    chosen = [c.coefficient for c in found.clients]
    assert sorted(chosen) == [0.0, 0.0, 1.0]
    assert values(found)[chosen.index(1.0)] == pytest.approx(found.decrease, rel=ROUNDING)
    assert [v for v, a in zip(values(found), chosen, strict=True) if not a] == [0.0, 0.0]


def test_a_rule_without_coefficients_is_refused_before_any_client_works():
    from flwr.serverapp.strategy import FedMedian

    asked: list[int] = []

    def count(message, context):
        asked.append(1)
        return step_reply(message, 1.0)

    with pytest.raises(ConfigError, match="FlowerRule combines coordinate by coordinate"):
        attributed(
            lambda v, **base: FlowerRule(FedMedian(), trainable_keys=v.parameter_names, **base),
            Clients(dict.fromkeys(range(3), count)),
        )
    assert not asked


def test_a_merge_that_tells_no_coefficients_is_refused():
    class Own(FedAvg):
        def merge(self, updates, accepted):
            vectors, aggregation = super().merge(updates, accepted)
            return vectors, Aggregation(weights=aggregation.weights)

    with pytest.raises(ConfigError, match=r"Own does not say .* \(Aggregation.applied\)"):
        attributed(
            lambda v, **base: Own(trainable_keys=v.parameter_names, **base),
            Movers([[1.0, 0.0]] * 3),
        )


def test_another_vector_than_the_validation_sets_is_refused():
    with pytest.raises(ConfigError, match=r"trainable_keys=validation\.parameter_names"):
        attributed(lambda v, **base: FedAvg(trainable_keys=[], **base), Movers([[1.0, 0.0]] * 3))


def test_a_rule_that_is_not_there_is_refused():
    with pytest.raises(ValuationError, match="rule = 'exact'; allowed: trapezoid, simpson, gauss2"):
        PathAttribution(validation(), "exact")


class Failing(Movers):
    """Some clients raise an error in round 2."""

    def __init__(self, steps: list[list[float]], failing: range) -> None:
        super().__init__(steps)
        self.failing = failing

    def __call__(self, message, context):
        if (
            message.metadata.message_type != "query"
            and message.content.config_records["config"]["server-round"] == 2
            and int(context.node_config["partition-id"]) in self.failing
        ):
            raise RuntimeError("no data today")
        return super().__call__(message, context)


def test_a_failed_round_has_no_clients_and_no_decrease():
    movers = Failing([[1.0, 0.5], [0.5, 1.0], [0.0, 0.0]], failing=range(1))
    callback = attributed(lambda v, **base: fedavg(v, min_valid_replies=3, **base), movers, 3)
    first, failed, last = callback.rounds
    assert failed.clients == ()
    assert failed.decrease == failed.attributed == failed.remainder == 0.0
    assert failed.loss_before == failed.loss_after == first.loss_after == last.loss_before


def test_a_round_that_takes_the_last_step_back_takes_its_contributions_back():
    # Everybody fails on the model of round 1: it may be why, and is given up.
    movers = Failing([[1.0, 0.5], [0.5, 1.0], [0.0, 0.0]], failing=range(3))
    callback = attributed(fedavg, movers, 3)
    first, failed, last = callback.rounds
    assert first.attributed > 0
    assert values(failed) == [-value for value in values(first)]
    assert failed.decrease == -first.decrease
    assert last.loss_before == first.loss_before
    gained = first.loss_before - last.loss_after
    assert sum(callback.contributions.values()) == pytest.approx(gained, rel=ROUNDING)


def test_a_loss_that_is_not_finite_is_nobodys(caplog):
    class Overflows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

        def forward(self, inputs: Tensor) -> Tensor:
            return (inputs @ self.weight).exp().unsqueeze(1)

    targets = torch.tensor([[4.0], [2.0]])
    held_out = Validation(Overflows(), torch.eye(2), targets, loss_fn=squared, device="cpu")
    callback = PathAttribution(held_out, "trapezoid")
    strategy = FedAvg(
        trainable_keys=["weight"], fraction_evaluate=0.0, device="cpu", callbacks=[callback]
    )
    with caplog.at_level(logging.ERROR):
        strategy.start(
            LocalGrid(Movers([[60.0, 60.0]] * 3), 3), model_arrays(Overflows()), num_rounds=1
        )
    (found,) = callback.rounds
    assert found.clients == ()
    assert math.isnan(found.loss_after)
    assert (found.decrease, found.remainder) == (0.0, 0.0)
    assert "round 1 cannot be attributed: no finite loss" in caplog.text


def test_a_step_that_is_taken_back_is_nobodys(caplog):
    class TakesBack(Callback):
        def on_start(self, strategy):
            self.strategy = strategy

        def on_model(self, server_round, model):
            if server_round == 1:
                model.take_back()

    held_out = validation()
    callback = PathAttribution(held_out, "trapezoid")
    strategy = fedavg(
        held_out, fraction_evaluate=0.0, device="cpu", callbacks=[callback, TakesBack()]
    )
    strategy.start(LocalGrid(Movers([[1.0, 1.0]] * 3), 3), model_arrays(point()), num_rounds=2)
    first, second = callback.rounds
    assert first.clients == ()
    assert first.decrease == 0.0
    assert second.loss_before == first.loss_before
    assert second.attributed == pytest.approx(second.decrease, rel=ROUNDING)
    assert "round 1: its step was taken back" in caplog.text


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
        trainable_keys=["weight"], fraction_evaluate=0.0, device="cpu", callbacks=[callback]
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
    inputs, targets = torch.randn(12, 2), torch.tensor([0, 1, 2] * 4)
    return Validation(nn.Linear(2, 3), inputs, targets, device="cpu", batch_size=5)


def test_classes_add_up_to_the_contribution():
    held_out = class_validation()
    callback = PathAttribution(held_out, "simpson", per_class=True)
    strategy = FedAvg(
        trainable_keys=held_out.parameter_names,
        fraction_evaluate=0.0,
        device="cpu",
        callbacks=[callback],
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


def test_contributions_by_class_need_every_class():
    with pytest.raises(ValuationError, match="no classes to tell contributions apart"):
        PathAttribution(validation(), per_class=True)
    held_out = Validation(nn.Linear(2, 3), torch.eye(2), torch.tensor([0, 2]), device="cpu")
    with pytest.raises(ValuationError, match=r"no example of the classes \[1\]"):
        PathAttribution(held_out, per_class=True)


class OnlyOnce(Movers):
    """The last client sends its update in round 1 only; later it returns the model."""

    def __call__(self, message, context):
        if message.metadata.message_type != "query":
            first = message.content.config_records["config"]["server-round"] == 1
            last = int(context.node_config["partition-id"]) == len(self.steps) - 1
            self.now = self.steps
            if last and not first:
                return Movers([[0.0] * 2] * len(self.steps))(message, context)
        return super().__call__(message, context)


def test_momentum_pays_those_who_sent_it():
    movers = OnlyOnce([[0.0, 0.0], [0.0, 0.0], [3.0, 0.0]])
    callback = attributed(lambda v, **base: fedavg(v, server_momentum=0.5, **base), movers, 4)
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
    movers = Failing([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], failing=range(3))
    callback = attributed(lambda v, **base: fedavg(v, server_momentum=0.5, **base), movers, 4)
    assert [len(found.clients) for found in callback.rounds] == [3, 3, 3, 3]
    for found in callback.rounds:
        assert found.attributed == pytest.approx(found.decrease, rel=100 * ROUNDING)


def test_neighbour_mixing_is_undone():
    # Of three updates each is replaced by the mean of the two nearest: all are the clients' own.
    movers = Movers([[1.0, 0.0], [1.2, 0.0], [0.0, 3.0]])
    callback = attributed(lambda v, **base: fedavg(v, neighbour_mixing=0.34, **base), movers)
    (found,) = callback.rounds
    assert sum(c.coefficient for c in found.clients) == pytest.approx(1.0)
    assert found.attributed == pytest.approx(found.decrease, rel=ROUNDING)


def test_every_strategy_says_whether_it_combines_updates():
    for name in ("fedmedian", "fedtrimmedavg", "bulyan", "multikrum"):
        assert name in STRATEGIES
    assert not FlowerRule.combines_updates
    assert FedAvg.combines_updates
